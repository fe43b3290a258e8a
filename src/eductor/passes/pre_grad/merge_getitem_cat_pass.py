"""Makes one slice of neighbouring pieces that only a cat uses."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def merge_getitem_cat_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes one slice of neighbouring pieces that only a cat uses.

    It pays always: the pieces become one slice, copied only where it must be a tensor of its own.
    """
    fuse_nests(
        graph, rewrite, context, aten.cat, claims=_claims, what="a cat of neighbouring pieces that it alone uses"
    )


def _claims(nest: Nest) -> bool:
    alone = all(len(x.users) == 1 for run in nest.runs for x in run.operands)
    return nest.is_slice and nest.kinds == {"split"} and alone


@merge_getitem_cat_pass.example
def first_two_of_three(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, c = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b], 1) + 1, c.sin()


@merge_getitem_cat_pass.example
def empty_sections_between(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, _, b, c = torch.split(x, [2, 0, 2, 4], 1)
    return torch.cat([b, c], 1) * 2 + a.sum()


@merge_getitem_cat_pass.refuses("it is not a cat of neighbouring pieces")
def a_piece_with_another_user(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, _ = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b], 1) + 1, b.sin()


@merge_getitem_cat_pass.refuses("no two neighbours")
def pieces_that_are_no_neighbours(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, _, c = torch.split(x, [2, 3, 3], 1)
    return torch.cat([a, c], 1) + 1
