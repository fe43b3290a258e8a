"""Reshapes once, not piece by piece, where reshaped pieces of one tensor are stacked."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def move_reshape_out_of_split_stack_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Reshapes once, not piece by piece, where reshaped pieces of one tensor are stacked.

    It pays where the pieces are many: one reshape in place of one a piece, and a stack of fewer operands.
    """
    fuse_nests(graph, rewrite, context, aten.stack, claims=_claims, what="a stack of reshaped pieces of one tensor")


def _claims(nest: Nest) -> bool:
    return "reshape" in nest.kinds and "unbind" not in nest.kinds


@move_reshape_out_of_split_stack_pass.example
def reshaped_pieces(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.stack([t.reshape(4, 2, 2) for t in torch.split(x, 4, 1)], 1) * 2


@move_reshape_out_of_split_stack_pass.example
def that_must_be_copied(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.stack([t.reshape(2, 8) for t in torch.split(x, 4, 1)], 1) * 2


@move_reshape_out_of_split_stack_pass.refuses("no two neighbours")
def reshaped_in_different_ways(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.stack([a.reshape(16), b.t().reshape(16)])


@move_reshape_out_of_split_stack_pass.refuses("it is not a stack of reshaped pieces")
def nothing_is_reshaped(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.stack(torch.split(x, 4, 1))
