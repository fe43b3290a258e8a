"""Makes one view of slices of size one that are squeezed and concatenated again."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def fuse_chunk_squeeze_cat_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes one view of slices of size one that are squeezed and concatenated again.

    It pays always: a copy, and two calls for each slice, become a view, or one copy where it must be a tensor of its
    own.
    """
    fuse_nests(graph, rewrite, context, aten.cat, claims=_claims, what="a cat of squeezed chunks of one tensor")


def _claims(nest: Nest) -> bool:
    return nest.is_one and "squeeze" in nest.kinds and nest.kinds.isdisjoint({"unsqueeze", "unbind"})


@fuse_chunk_squeeze_cat_pass.example
def one_flatten(x: torch.Tensor = f32(2, 4, 3)) -> torch.Tensor:
    return torch.cat([t.squeeze(1) for t in torch.split(x, 1, 1)], 1) * 2


@fuse_chunk_squeeze_cat_pass.example
def along_another_dimension(x: torch.Tensor = f32(2, 4, 3)) -> torch.Tensor:
    return torch.cat([t.squeeze(dim=-2) for t in x.chunk(4, dim=-2)], dim=0) * 2


@fuse_chunk_squeeze_cat_pass.example
def only_some_of_the_chunks(x: torch.Tensor = f32(2, 4, 3)) -> torch.Tensor:
    parts = torch.chunk(x, 4, 1)
    return torch.cat([t.squeeze() for t in parts[1:3]], -1) * 2


@fuse_chunk_squeeze_cat_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(2, 3, 3)) -> torch.Tensor:
    return torch.cat([t.squeeze(1) for t in reversed(torch.split(x, 1, 1))], 1)


@fuse_chunk_squeeze_cat_pass.refuses("it is not a cat of squeezed chunks")
def another_tensor_among_them(x: torch.Tensor = f32(2, 2, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat([*(t.squeeze(1) for t in torch.split(x, 1, 1)), y], 1)


@fuse_chunk_squeeze_cat_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(2, 2, 3)) -> torch.Tensor:
    y = x.sin()
    parts = [t.squeeze(1) for t in torch.split(y, 1, 1)]
    y.add_(1)
    return torch.cat(parts, 1)
