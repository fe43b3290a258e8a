"""Computes a maximum or minimum from an existing one over fewer of its dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, Rewriter, known_true, tensor_of, value_of
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten

_REDUCTIONS = {aten.amax: aten.amax, aten.max: aten.amax, aten.amin: aten.amin, aten.min: aten.amin}
"""For each operator, the one that reduces over any dimensions; without arguments, `max` and `min` reduce over all."""


@dataclass(frozen=True, slots=True)
class _Reduction:
    node: Node
    op: Any
    operand: Node
    dims: frozenset[int]
    keeps: bool


@graph_pass(stage="post_grad", numerics="reassociates")
def partial_reduction_reuse(graph: GraphView, rewrite: Rewriter, *, least: int = 4096) -> None:
    """Computes a maximum or minimum from an existing one over fewer of its dimensions.

    Only the sign of a zero may differ: of 0.0 and -0.0, either may be returned.

    It pays where the tensor is large, since it is read once less; one of less than `least` elements is cheap to read.
    """
    for node in graph.find(*_REDUCTIONS):
        wide = _read(graph, node)
        if wide is None:
            continue
        others = [found for user in wide.operand.users if (found := _read(graph, user)) is not None]
        parts = [r for r in others if r.op is wide.op and r.dims < wide.dims]
        if not parts:
            rewrite.reject("no other call reduces the same tensor over some of its dimensions", node)
            continue
        part = max(parts, key=lambda r: len(r.dims))
        late = next((user for user in node.users if not part.node < user), None)
        if not known_true(value_of(wide.operand).numel() >= least):
            rewrite.reject(f"the tensor is not known to have {least} elements", node, wide.operand)
        elif late is not None:
            rewrite.reject(f"{late.name} reads it before {part.node.name} is computed", node)
        else:
            _reuse(rewrite, wide, part)


def _reuse(rewrite: Rewriter, wide: _Reduction, part: _Reduction) -> None:
    """Reduces the remaining dimensions, and restores the shape of the result."""
    rank = value_of(wide.operand).dim()
    before = wide.node if part.node < wide.node else part.node.next
    left = [d for d in range(rank) if part.keeps or d not in part.dims]
    over = [left.index(d) for d in sorted(wide.dims) if part.keeps or d not in part.dims]
    found = rewrite.insert(wide.op, part.node, over, part.keeps and wide.keeps, before=before, like=wide.node)
    if wide.keeps and not part.keeps:
        for d in sorted(wide.dims):
            found = rewrite.insert(aten.unsqueeze, found, d, before=before, like=wide.node)
    rewrite.replace(wide.node, found)


def _read(graph: GraphView, node: Node) -> _Reduction | None:
    """A call as a reduction; None for any other call, for a scalar operand, and for a maximum that returns indices."""
    bound = graph.bind(node) if graph.is_call(node, *_REDUCTIONS) else None
    if not isinstance(bound, Bound) or tensor_of(node) is None:
        return None
    operand = tensor_of(bound["self"])
    if operand is None or operand.dim() == 0 or (bound.packet in (aten.max, aten.min) and bound.given != {"self"}):
        return None
    rank = operand.dim()
    dims = frozenset(d % rank for d in bound.get("dim") or range(rank))
    return _Reduction(node, _REDUCTIONS[bound.packet], bound["self"], dims, bool(bound.get("keepdim")))


@partial_reduction_reuse.example
def of_rows_and_of_all(x: torch.Tensor = f32(64, 64)) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amax(1, keepdim=True), x.max()


@partial_reduction_reuse.example
def of_all_first(x: torch.Tensor = f32(8, 16, 32)) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.abs()
    return y.amin((0, -1), keepdim=True), y.amin(2)


@partial_reduction_reuse.refuses("no other call reduces")
def of_other_dimensions(x: torch.Tensor = f32(64, 64)) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amax(0), x.amax(1)


@partial_reduction_reuse.refuses("not known to have 4096 elements")
def of_little(x: torch.Tensor = f32(8, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amax(1), x.amax()
