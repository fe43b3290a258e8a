"""Makes one reshape of chunks that are reshaped and concatenated again."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def fuse_chunk_reshape_concat_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes one reshape of chunks that are reshaped and concatenated again.

    It pays always: a copy, and a call for each chunk, become a view, or one copy where it must be a tensor of its own.
    """
    fuse_nests(graph, rewrite, context, aten.cat, claims=_claims, what="a cat of reshaped chunks of one tensor")


def _claims(nest: Nest) -> bool:
    return nest.is_one and "reshape" in nest.kinds and nest.kinds.isdisjoint({"squeeze", "unsqueeze", "unbind"})


@fuse_chunk_reshape_concat_pass.example
def one_reshape(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(4, 2, 2) for t in torch.chunk(x, 3, 1)], 1) + 1


@fuse_chunk_reshape_concat_pass.example
def along_another_dimension(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(2, 8) for t in x.split(4, dim=-1)], dim=0).relu()


@fuse_chunk_reshape_concat_pass.example
def result_that_leaves_the_graph(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(4, 2, 2) for t in torch.chunk(x, 3, 1)], 1)


@fuse_chunk_reshape_concat_pass.refuses("no two neighbours")
def last_chunk_is_short(x: torch.Tensor = f32(4, 10)) -> torch.Tensor:
    return torch.cat([t.reshape(1, -1) for t in torch.chunk(x, 4, 1)][::3], 1)


@fuse_chunk_reshape_concat_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    a, b, c = torch.chunk(x, 3, 1)
    return torch.cat([c.reshape(8, 2), b.reshape(8, 2), a.reshape(8, 2)], 1)


@fuse_chunk_reshape_concat_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    y = x.sin()
    parts = [t.reshape(8, 2) for t in torch.chunk(y, 3, 1)]
    y.mul_(2)
    return torch.cat(parts, 1)


@fuse_chunk_reshape_concat_pass.refuses("a barrier stands between")
def chunks_without_gradient(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    with torch.no_grad():
        parts = [t.reshape(8, 2) for t in torch.chunk(x, 3, 1)]
    return torch.cat(parts, 1) + x.sum()
