"""Makes a permutation and a reshape of a cat of what was selected from one tensor."""

from __future__ import annotations

import torch

from eductor.graph.core_rewriter import in_core_operators
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="exact", on=False)
def select_cat_aten_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes a permutation and a reshape of a cat of what was selected from one tensor.

    It pays where rows or columns are picked one by one: a call for each and a copy become a view and one copy at most.
    """
    fuse_nests(
        graph,
        in_core_operators(rewrite),
        context,
        aten.cat,
        claims=_claims,
        what="a cat of what was selected from one tensor",
    )


def _claims(nest: Nest) -> bool:
    return nest.is_one and "unbind" in nest.kinds and "unsqueeze" not in nest.kinds


@select_cat_aten_pass.example
def rows_side_by_side(x: torch.Tensor = f32(3, 4, 2)) -> torch.Tensor:
    return torch.cat([x[0], x[1], x[2]], 1) * 2


@select_cat_aten_pass.example
def of_a_tensor_that_is_turned(x: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    y = x.t()
    return torch.cat([y[0], y[1], y[2]]) * 2


@select_cat_aten_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    return torch.cat([x[1], x[0]])


@select_cat_aten_pass.refuses("it is not a cat of what was selected")
def pieces(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    return torch.cat([x[:, :2], x[:, 2:]], 1) * 2
