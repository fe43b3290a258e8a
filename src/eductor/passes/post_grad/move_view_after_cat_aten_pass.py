"""Makes one permutation and one reshape of a cat of reshaped pieces of one tensor."""

from __future__ import annotations

import torch

from eductor.graph.core_rewriter import in_core_operators
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="exact", on=False)
def move_view_after_cat_aten_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes one permutation and one reshape of a cat of reshaped pieces of one tensor.

    It pays where the pieces are many: one reshape in place of one a piece.
    """
    fuse_nests(
        graph,
        in_core_operators(rewrite),
        context,
        aten.cat,
        claims=_claims,
        what="a cat of reshaped pieces of one tensor",
    )


def _claims(nest: Nest) -> bool:
    return nest.is_one and "reshape" in nest.kinds


@move_view_after_cat_aten_pass.example
def reshaped_pieces(x: torch.Tensor = f32(12, 4)) -> torch.Tensor:
    return torch.cat([piece.view(2, 8) for piece in x.split(4)], 1) * 2


@move_view_after_cat_aten_pass.refuses("it is not a cat of reshaped pieces")
def pieces_as_they_are(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat(x.split(4, 1), 0) * 2


@move_view_after_cat_aten_pass.refuses("no two neighbours")
def reshaped_tensors(x: torch.Tensor = f32(4, 6), y: torch.Tensor = f32(4, 6)) -> torch.Tensor:
    return torch.cat([x.reshape(2, 12), y.reshape(2, 12)], 1)
