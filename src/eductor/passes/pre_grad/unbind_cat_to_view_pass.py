"""Makes a permutation and a reshape of a cat of what was unbound."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def unbind_cat_to_view_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes a permutation and a reshape of a cat of what was unbound.

    It pays always: a call for each part and a copy become a view and one copy at most.
    """
    fuse_nests(graph, rewrite, context, aten.cat, claims=_claims, what="a cat of what was unbound from one tensor")


def _claims(nest: Nest) -> bool:
    return "unbind" in nest.kinds and "unsqueeze" not in nest.kinds


@unbind_cat_to_view_pass.example
def moved_over_two_dimensions(x: torch.Tensor = f32(3, 4, 2)) -> torch.Tensor:
    return torch.cat(torch.unbind(x, 0), 1) * 2


@unbind_cat_to_view_pass.example
def a_flatten(x: torch.Tensor = f32(3, 4, 2)) -> torch.Tensor:
    return torch.cat(x.unbind(1), -1) * 2


@unbind_cat_to_view_pass.example
def beside_another_tensor(x: torch.Tensor = f32(3, 4), y: torch.Tensor = f32(5)) -> torch.Tensor:
    return torch.cat([*x.unbind(0), y]) * 2


@unbind_cat_to_view_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    a, b = x.unbind(0)
    return torch.cat([b, a])


@unbind_cat_to_view_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    y = x.clone()
    parts = y.unbind(0)
    y.zero_()
    return torch.cat(parts)
