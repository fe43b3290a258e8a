"""Makes one reshape of chunks that are reshaped, unsqueezed and concatenated again."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def fuse_chunk_reshape_unsqueeze_concat_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes one reshape of chunks that are reshaped, unsqueezed and concatenated again.

    It pays always: a copy, and two calls for each chunk, become a view, or one copy where it must be a tensor of its
    own.
    """
    fuse_nests(graph, rewrite, context, aten.cat, claims=_claims, what="a cat of unsqueezed parts of one tensor")


def _claims(nest: Nest) -> bool:
    return nest.is_one and "unsqueeze" in nest.kinds


@fuse_chunk_reshape_unsqueeze_concat_pass.example
def one_reshape(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(4, 2, 2).unsqueeze(1) for t in torch.chunk(x, 3, 1)], 1) + 1


@fuse_chunk_reshape_unsqueeze_concat_pass.example
def along_another_dimension(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(2, 8).unsqueeze(-1) for t in torch.chunk(x, 3, 1)], 0).relu()


@fuse_chunk_reshape_unsqueeze_concat_pass.example
def index_with_none(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t[None] for t in x.split(4, 1)]) * 3


@fuse_chunk_reshape_unsqueeze_concat_pass.refuses("no two neighbours")
def uneven_chunks(x: torch.Tensor = f32(4, 10)) -> torch.Tensor:
    return torch.cat([t.reshape(-1).unsqueeze(0)[:, :4] for t in torch.chunk(x, 4, 1)], 0)


@fuse_chunk_reshape_unsqueeze_concat_pass.refuses("no two neighbours")
def the_same_chunk_twice(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    a, _, _ = torch.chunk(x, 3, 1)
    return torch.cat([a.unsqueeze(0), a.unsqueeze(0)], 0)


@fuse_chunk_reshape_unsqueeze_concat_pass.refuses("a barrier stands between")
def chunks_under_autocast(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parts = [t.unsqueeze(0) for t in torch.chunk(x, 3, 1)]
    return torch.cat(parts, 0)
