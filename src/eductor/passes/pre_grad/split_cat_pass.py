"""Makes views of cats that put the pieces of one tensor together again, along any dimension."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def split_cat_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes views of cats that put the pieces of one tensor together again, along any dimension.

    It pays always: a copy becomes a view, or goes; where the order of pieces changes, one copy stays.
    """
    fuse_nests(graph, rewrite, context, aten.cat, claims=_claims, what="a cat of all pieces of one tensor")


def _claims(nest: Nest) -> bool:
    return nest.is_one and nest.kinds <= {"split", "permute"} and (nest.is_whole or not nest.is_slice)


@split_cat_pass.example
def all_pieces_in_order(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.cat(torch.split(x, [3, 0, 5], 1), 1) * 2


@split_cat_pass.example
def along_another_dimension(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.cat(x.split(2, -1), 0) * 2


@split_cat_pass.example
def slices(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.cat([x[:, :3], x[:, 3:]], -1).relu()


@split_cat_pass.example
def returned(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.cat(torch.split(x, 2, 1), 1)


@split_cat_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.cat([b, a], 1)


@split_cat_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    y = x.sin()
    parts = torch.split(y, 4, 1)
    y[0] = 0
    return torch.cat(parts, 1)


@split_cat_pass.refuses("it is not a cat of all pieces")
def only_some_pieces(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b, c, d = torch.split(x, 2, 1)
    return torch.cat([b, c], 1) + a.sum() + d.sum()
