"""Reads numbers in a graph: Python numbers, tensors known to hold one number everywhere, bounds of other tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, tensor_of
from eductor.graph.snapshot import attribute_or_none
from eductor.views import RESHAPES

aten = torch.ops.aten
prims = torch.ops.prims

CASTS = {prims.convert_element_type: "a", aten._to_copy: "self", aten.to: "self"}
COPIES = frozenset((aten.clone, aten.alias, aten.lift_fresh_copy, aten.contiguous, aten.detach))
_FILLED = {aten.full: "fill_value", aten.full_like: "fill_value", aten.scalar_tensor: "s"}
_ONES = {aten.ones: 1.0, aten.zeros: 0.0, aten.ones_like: 1.0, aten.zeros_like: 0.0}
_UNARY: dict[Any, Callable[[float], float]] = {
    aten.sqrt: math.sqrt,
    aten.rsqrt: lambda x: 1 / math.sqrt(x),
    aten.reciprocal: lambda x: 1 / x,
    aten.neg: lambda x: -x,
}
_DEPTH = 16

Bounds = tuple[float, float]


def number_of(graph: GraphView, x: Any, depth: int = _DEPTH) -> float | None:
    """The number that a value is, or holds in each of its elements; None if that is not known."""
    if isinstance(x, (int, float)):
        return float(x)
    if not isinstance(x, Node) or not depth:
        return None
    if x.op == "get_attr":
        return _held(x)
    bound = graph.bind(x)
    if not isinstance(bound, Bound):
        return None
    found = _constant(graph, bound, depth - 1)
    tensor = tensor_of(x)
    return found if found is None or tensor is None else rounded(found, tensor.dtype)


def _constant(graph: GraphView, bound: Bound, depth: int) -> float | None:
    packet = bound.packet
    if packet in _FILLED:
        return number_of(graph, bound[_FILLED[packet]], depth)
    if packet in _ONES:
        return _ONES[packet]
    if packet in CASTS:
        return number_of(graph, bound[CASTS[packet]], depth)
    if packet in COPIES or packet in RESHAPES or packet is aten.expand:
        return number_of(graph, bound["self"], depth)
    if packet in (aten.mul, aten.div) and bound.get("rounding_mode") is None:
        a, b = (number_of(graph, bound[name], depth) for name in ("self", "other"))
        if a is None or b is None or (packet is aten.div and not b):
            return None
        return a * b if packet is aten.mul else a / b
    if packet in _UNARY:
        a = number_of(graph, bound["self"], depth)
        return _UNARY[packet](a) if a is not None and (a > 0 or packet is aten.neg) else None
    return None


def _held(node: Node) -> float | None:
    """The value of a constant of the graph that has one element; None for any other."""
    if not str(node.target).startswith("_tensor_const"):
        return None
    value = attribute_or_none(node.graph.owning_module, str(node.target))
    is_plain = type(value) is torch.Tensor and value.numel() == 1 and not value.dtype.is_complex
    return float(value.item()) if is_plain else None


def rounded(number: float, dtype: torch.dtype) -> float:
    """A number rounded to a dtype."""
    return float(torch.tensor(number, dtype=dtype).item())


def bounds_of(graph: GraphView, x: Any, depth: int = _DEPTH) -> Bounds | None:
    """The least and greatest number that a value may hold, if none is NaN; None if that is not known."""
    number = number_of(graph, x)
    if number is not None:
        return None if math.isnan(number) else (number, number)
    tensor = tensor_of(x)
    if tensor is None or not depth:
        return None
    if tensor.dtype is torch.bool:
        return (0.0, 1.0)
    bound = graph.bind(x)
    found = _bounds(graph, bound, depth - 1) if isinstance(bound, Bound) else None
    if found is None or not tensor.dtype.is_floating_point:
        return found
    return rounded(found[0], tensor.dtype), rounded(found[1], tensor.dtype)


def _bounds(graph: GraphView, bound: Bound, depth: int) -> Bounds | None:
    packet = bound.packet
    if packet in CASTS:
        return bounds_of(graph, bound[CASTS[packet]], depth)
    if packet in COPIES or packet in RESHAPES or packet in (aten.expand, aten.slice):
        return bounds_of(graph, bound["self"], depth)
    if packet in (aten.where, aten.masked_fill):
        names = ("self", "other") if packet is aten.where else ("self", "value")
        a, b = (bounds_of(graph, bound[name], depth) for name in names)
        return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
    if packet in (aten.mul, aten.add, aten.sub, aten.rsub) and bound.get("alpha", 1) == 1:
        a, b = (bounds_of(graph, bound[name], depth) for name in ("self", "other"))
        if a is None or b is None:
            return None
        ends = [_END[packet](x, y) for x in a for y in b]
        return None if any(map(math.isnan, ends)) else (min(ends), max(ends))
    return None


_END: dict[Any, Callable[[float, float], float]] = {
    aten.mul: lambda x, y: x * y,
    aten.add: lambda x, y: x + y,
    aten.sub: lambda x, y: x - y,
    aten.rsub: lambda x, y: y - x,
}
