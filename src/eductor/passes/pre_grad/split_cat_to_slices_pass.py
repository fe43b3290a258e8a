"""Makes one slice of each run of neighbouring pieces among the operands of a cat."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def split_cat_to_slices_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes one slice of each run of neighbouring pieces among the operands of a cat.

    It pays where a cat has many pieces: it stays a copy, but of few operands.
    """
    fuse_nests(graph, rewrite, context, aten.cat, claims=_claims, what="a cat of pieces and other operands")


def _claims(nest: Nest) -> bool:
    return not nest.is_one and nest.kinds.isdisjoint({"squeeze", "unsqueeze", "unbind"})


@split_cat_to_slices_pass.example
def runs_of_two_tensors(x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b, c, d = torch.split(x, 2, 1)
    e, f, _ = torch.split(y, [2, 2, 4], 1)
    return torch.cat([a, b, c, e, f, d], 1)


@split_cat_to_slices_pass.refuses("no two neighbours")
def pieces_of_different_tensors(x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    (a, _), (_, d) = torch.split(x, 4, 1), torch.split(y, 4, 1)
    return torch.cat([a, d], 1)


@split_cat_to_slices_pass.refuses("no two neighbours")
def along_another_dimension_it_would_be_copied_twice(
    x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 4)
) -> torch.Tensor:
    return torch.cat([*torch.split(x, 4, 1), y], 0)
