"""Makes a reshape of a stack of equal pieces of one tensor."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def split_stack_to_cats_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes a reshape of a stack of equal pieces of one tensor.

    It pays always: a call for each piece and a copy become a view and one copy at most.
    """
    fuse_nests(graph, rewrite, context, aten.stack, claims=_claims, what="a stack of pieces of one tensor")


def _claims(nest: Nest) -> bool:
    return nest.is_one and nest.kinds <= {"split", "permute"}


@split_stack_to_cats_pass.example
def one_reshape(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.stack(torch.split(x, 2, 1), 1) * 2


@split_stack_to_cats_pass.example
def along_another_dimension(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.stack(x.chunk(4, -1), dim=0) * 2


@split_stack_to_cats_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.stack([b, a])


@split_stack_to_cats_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    y = x.sin()
    parts = torch.split(y, 4, 1)
    y.add_(1)
    return torch.stack(parts)
