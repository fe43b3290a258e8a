"""Makes one slice of a cat of neighbouring pieces that others use too."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def mutate_cat_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes one slice of a cat of neighbouring pieces that others use too.

    It pays always: a copy becomes a slice, or is made from one; the pieces stay for their other users.
    """
    fuse_nests(graph, rewrite, context, aten.cat, claims=_claims, what="a cat of neighbouring pieces of one tensor")


def _claims(nest: Nest) -> bool:
    return nest.is_slice and nest.kinds == {"split"}


@mutate_cat_pass.example
def pieces_with_other_users(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, c = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b], 1) + 1, a.sin() + b.cos() + c.sum()


@mutate_cat_pass.refuses("no two neighbours")
def one_piece_twice(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, _ = torch.split(x, 4, 1)
    return torch.cat([a, a], 1) + 1


@mutate_cat_pass.refuses("it is not a cat of neighbouring pieces")
def another_tensor_among_them(x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 2)) -> torch.Tensor:
    a, b, _ = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b, y], 1) + a.sum() + b.sum()
