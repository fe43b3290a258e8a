"""Proves that a condition is a lower triangle: `tril`, `triu`, and comparisons of positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, known_equal, tensor_of
from eductor.passes.joint.attention.numbers import CASTS, COPIES, number_of
from eductor.views.index_map import IndexMap
from eductor.views.source_views import view_call

aten = torch.ops.aten
prims = torch.ops.prims


@dataclass(frozen=True, slots=True)
class Positions:
    """A tensor of integers that is linear in its indices."""

    steps: tuple[int, ...]
    """By how much it grows along each dimension."""
    start: int


@dataclass(frozen=True, slots=True)
class PositionComparison:
    """True where a linear function of the indices is at most 0."""

    left: Positions


_DEPTH = 24


def is_lower_triangle(graph: GraphView, condition: Any, *, holds: bool) -> bool:
    """Whether a condition holds (or fails) exactly where the last index is at most the one before it."""
    found = _comparison(graph, condition, _DEPTH)
    if found is None:
        return False
    left = found.left if holds else _negated(found.left)
    *others, query, key = (0, 0, *left.steps)
    return not any(others) and (query, key) == (-1, 1) and left.start == 0


def _negated(f: Positions) -> Positions:
    """`f <= 0` fails where `1 - f <= 0` holds."""
    return Positions(tuple(-s for s in f.steps), 1 - f.start)


def _comparison(graph: GraphView, x: Any, depth: int) -> PositionComparison | None:
    bound = graph.bind(x) if isinstance(x, Node) and x.op == "call_function" else None
    if not isinstance(bound, Bound) or not depth:
        return None
    packet = bound.packet
    if packet in (aten.tril, aten.triu):
        return _triangle(graph, bound)
    if packet in (aten.bitwise_not, aten.logical_not):
        inner = _comparison(graph, bound["self"], depth - 1)
        return inner and PositionComparison(_negated(inner.left))
    if packet in (aten.logical_and, aten.bitwise_and, aten.mul):
        for one, other in (("self", "other"), ("other", "self")):
            if number_of(graph, bound[one]) == 1 and _same_rank(bound[other], x):
                return _comparison(graph, bound[other], depth - 1)
        return None
    if packet in (aten.eq, aten.ne) and number_of(graph, bound["other"]) == 0:
        inner = _comparison(graph, bound["self"], depth - 1)
        return inner and (PositionComparison(_negated(inner.left)) if packet is aten.eq else inner)
    if packet is aten.where and (number_of(graph, bound["self"]), number_of(graph, bound["other"])) == (1, 0):
        return _comparison(graph, bound["condition"], depth - 1)
    if packet in CASTS:
        return _comparison(graph, bound[CASTS[packet]], depth - 1)
    if packet in _ORDERS:
        a, b = (_positions(graph, bound[name], depth - 1) for name in ("self", "other"))
        return None if a is None or b is None else PositionComparison(_ordered(packet, a, b))
    moved = _moved(graph, x, bound, _comparison_steps, depth)
    return PositionComparison(moved) if moved is not None else None


def _comparison_steps(graph: GraphView, x: Any, depth: int) -> Positions | None:
    found = _comparison(graph, x, depth)
    return found.left if found is not None else None


def _triangle(graph: GraphView, bound: Bound) -> PositionComparison | None:
    """`tril(ones, d)` holds where column - row <= d; `triu(ones, d)` where row - column <= -d."""
    tensor, diagonal = tensor_of(bound["self"]), bound["diagonal"]
    if number_of(graph, bound["self"]) != 1 or tensor is None or not isinstance(diagonal, int):
        return None
    outer = (0,) * (tensor.dim() - 2)
    lower = bound.packet is aten.tril
    return PositionComparison(Positions((*outer, -1, 1), -diagonal) if lower else Positions((*outer, 1, -1), diagonal))


_ORDERS = (aten.le, aten.lt, aten.ge, aten.gt)


def _ordered(packet: Any, a: Positions, b: Positions) -> Positions:
    """A comparison of integers as `f <= 0`."""
    if packet in (aten.ge, aten.gt):
        a, b = b, a
    f = _sum(a, b, -1)
    return Positions(f.steps, f.start + (packet in (aten.lt, aten.gt)))


def _sum(a: Positions, b: Positions, sign: int) -> Positions:
    rank = max(len(a.steps), len(b.steps))
    left, right = ((0,) * (rank - len(f.steps)) + f.steps for f in (a, b))
    return Positions(tuple(x + sign * y for x, y in zip(left, right, strict=True)), a.start + sign * b.start)


def _positions(graph: GraphView, x: Any, depth: int) -> Positions | None:
    number = number_of(graph, x)
    if number is not None:
        tensor = tensor_of(x)
        rank = tensor.dim() if tensor is not None else 0
        return Positions((0,) * rank, int(number)) if number == int(number) else None
    tensor = tensor_of(x)
    bound = graph.bind(x) if isinstance(x, Node) and x.op == "call_function" else None
    if not isinstance(bound, Bound) or tensor is None or tensor.dtype not in (torch.int64, torch.int32) or not depth:
        return None
    packet = bound.packet
    if packet in (prims.iota, aten.arange):
        start, step = bound.get("start", 0), bound.get("step", 1)
        return Positions((step,), start) if type(start) is int and type(step) is int else None
    if packet in (aten.add, aten.sub) and bound.get("alpha", 1) == 1:
        a, b = (_positions(graph, bound[name], depth - 1) for name in ("self", "other"))
        return None if a is None or b is None else _sum(a, b, 1 if packet is aten.add else -1)
    if packet in CASTS:
        return _positions(graph, bound[CASTS[packet]], depth - 1)
    return _moved(graph, x, bound, _positions, depth)


def _moved(graph: GraphView, x: Node, bound: Bound, of: Any, depth: int) -> Positions | None:
    """Positions after a copy, an expansion, or a view each dimension of which runs along one dimension, or none."""
    source, here = tensor_of(bound.get("self")), tensor_of(x)
    inner: Positions | None = None if source is None or here is None else of(graph, bound["self"], depth - 1)
    if source is None or here is None or inner is None or len(inner.steps) != source.dim():
        return None
    if bound.packet in COPIES:
        return inner
    if bound.packet is aten.expand:
        own = [0 if known_equal(size, 1) else step for size, step in zip(source.shape, inner.steps, strict=True)]
        return Positions((*(0,) * (here.dim() - source.dim()), *own), inner.start)
    view = view_call(graph, x)
    index_map = view.apply(IndexMap.whole(bound["self"], tuple(source.shape))) if view is not None else None
    if index_map is None or any(len(modes) > 1 for modes in index_map.dims):
        return None
    steps = [inner.steps[modes[0].dim] * modes[0].step if modes else 0 for modes in index_map.dims]
    start = inner.start + sum(first * step for first, step in zip(index_map.starts, inner.steps, strict=True))
    return Positions(tuple(steps), start) if all(type(n) is int for n in (*steps, start)) else None


def _same_rank(a: Any, b: Any) -> bool:
    here, there = tensor_of(a), tensor_of(b)
    return here is not None and there is not None and here.dim() == there.dim()
