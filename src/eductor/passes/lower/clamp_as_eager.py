"""Clamps at zero so that a zero keeps its sign."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, Rewriter, tensor_of
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten

_BEYOND = {aten.clamp_min: ("min", aten.lt.Scalar), aten.clamp_max: ("max", aten.gt.Scalar)}


@graph_pass(stage="lower", numerics="exact")
def clamp_as_eager(graph: GraphView, rewrite: Rewriter) -> None:
    """Clamps at zero so that a zero keeps its sign.

    Eager keeps what is not beyond the limit. Inductor takes the larger of the value and the limit, which of two zeros is
    the limit: for -0.0 it gives 0.0, and 1 / x has the other sign.

    It pays always: the sign is wrong without it.
    """
    for node in graph.find(*_BEYOND):
        bound, result = graph.bind(node), tensor_of(node)
        limit = bound.get(_BEYOND[bound.packet][0]) if isinstance(bound, Bound) else None
        if not isinstance(bound, Bound) or result is None or isinstance(limit, Node) or limit != 0:
            rewrite.reject("its limit is not the number zero", node)
        elif not result.is_floating_point():
            rewrite.reject("integers have one zero", node)
        else:
            _, compare = _BEYOND[bound.packet]
            kind, device = result.dtype, result.device
            zero = rewrite.insert(aten.full.default, [], limit, before=node, dtype=kind, device=device)
            beyond = rewrite.insert(compare, bound["self"], 0, before=node)
            rewrite.replace(node, aten.where.self, beyond, zero, bound["self"])


@clamp_as_eager.example
def clamped_at_zero(x: torch.Tensor = f32(4)) -> tuple[torch.Tensor, torch.Tensor]:
    return aten.clamp_min(x, 0), aten.clamp_max(x, -0.0)


@clamp_as_eager.refuses("its limit is not the number zero")
def clamped_at_one(x: torch.Tensor = f32(4)) -> torch.Tensor:
    return aten.clamp_min(x, 1)  # type: ignore[no-any-return]
