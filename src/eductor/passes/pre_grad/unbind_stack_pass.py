"""Makes a permutation of a stack of all that was unbound, or of a part of it."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def unbind_stack_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes a permutation of a stack of all that was unbound, or of a part of it.

    It pays always: a copy, and a call for each part, become a view, or one copy where it must be a tensor of its own.
    """
    fuse_nests(graph, rewrite, context, aten.stack, claims=_claims, what="a stack of what was unbound from one tensor")


def _claims(nest: Nest) -> bool:
    return nest.is_one and not nest.kinds.isdisjoint({"unbind", "squeeze"})


@unbind_stack_pass.example
def the_tensor_itself(x: torch.Tensor = f32(3, 4)) -> torch.Tensor:
    return torch.stack(torch.unbind(x, 1), -1) * 2


@unbind_stack_pass.example
def another_dimension(x: torch.Tensor = f32(3, 4, 2)) -> torch.Tensor:
    return torch.stack(x.unbind(0), dim=2) * 2


@unbind_stack_pass.example
def a_part(x: torch.Tensor = f32(5, 4)) -> torch.Tensor:
    return torch.stack([x[1], x[2], x[3]]) * 2


@unbind_stack_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    a, b = x.unbind(0)
    return torch.stack([b, a])


@unbind_stack_pass.refuses("a barrier stands between")
def unbound_without_gradient(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    with torch.no_grad():
        parts = x.unbind(0)
    return torch.stack(parts) * x
