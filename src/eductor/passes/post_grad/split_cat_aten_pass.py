"""Makes slices and permutations of cats of pieces of one tensor."""

from __future__ import annotations

import torch

from eductor.graph.core_rewriter import in_core_operators
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="exact", on=False)
def split_cat_aten_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes slices and permutations of cats of pieces of one tensor.

    It pays where models join what they split by hand: a copy becomes a view. The passes before autograd take most of
    these.
    """
    fuse_nests(
        graph, in_core_operators(rewrite), context, aten.cat, claims=_claims, what="a cat of pieces of one tensor"
    )


def _claims(nest: Nest) -> bool:
    return nest.is_one and nest.kinds <= {"split", "permute"}


@split_cat_aten_pass.example
def neighbouring_pieces(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    pieces = x.split(1, -1)
    return torch.cat(pieces[2:9], 1) * 2


@split_cat_aten_pass.example
def along_another_dimension(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.cat(x.split(2, -1), 0) * 2


@split_cat_aten_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.cat([b, a], 1)


@split_cat_aten_pass.refuses("it is not a cat of pieces of one tensor")
def beside_another_tensor(x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 1)) -> torch.Tensor:
    a, b, _ = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b, y], 1)
