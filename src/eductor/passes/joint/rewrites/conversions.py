"""Conversions of conversions: one is enough where the first loses nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import difference, tensor_of, value_of
from eductor.graph.view import GraphView

aten = torch.ops.aten
prims = torch.ops.prims

CONVERSIONS = (prims.convert_element_type, aten._to_copy)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def one_conversion(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """`convert(convert(x, wide), d)` is `convert(x, d)`, or `x`, where `wide` has all values of x's dtype."""
    outer, between = _converted(graph, node)
    _, source = _converted(graph, between)
    if outer is None or between is None or source is None:
        return
    first, middle, last = (value_of(n).dtype for n in (source, between, node))
    reason = why_not(first, middle, last)
    if reason:
        rewrite.reject(reason, node, between)
    elif first is not last and outer.packet is aten._to_copy:
        rewrite.replace(node, outer.op, source, dtype=last)
    elif first is not last:
        rewrite.replace(node, outer.op, source, last)
    elif unlike := difference(value_of(node), value_of(source)):
        rewrite.reject(f"the result differs from {source.name}: {unlike}", node)
    elif verdict := graph.effects.may_alias(node, source):
        rewrite.replace(node, source)
    else:
        rewrite.reject(verdict, node)


def why_not(first: torch.dtype, middle: torch.dtype, last: torch.dtype) -> str:
    """Why a conversion by way of another dtype is not the direct one for every value; empty if it is."""
    unknown = next((d for d in (first, middle, last) if d not in (*FLOATS, *INTEGERS)), None)
    if unknown is not None:
        return f"conversions of {unknown} are left as they are"
    if not _holds(middle, first):
        return f"{middle} does not have every value of {first}"
    if _holds(last, first) or last is torch.bool:
        return ""
    # Within a kind, the same value is rounded once either way. NaN is no integer, and an integer may be rounded twice.
    same_kind = first.is_floating_point == middle.is_floating_point == last.is_floating_point
    return "" if same_kind else f"how {first} and {middle} are rounded to {last} may differ"


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every value of a dtype is one of another dtype, too."""
    if wide is narrow or narrow is torch.bool:
        return True
    if wide is torch.bool or (narrow.is_floating_point and not wide.is_floating_point):
        return False
    if narrow.is_floating_point:
        w, n = torch.finfo(wide), torch.finfo(narrow)
        return w.eps <= n.eps and w.max >= n.max and w.smallest_normal * w.eps <= n.smallest_normal * n.eps
    values = torch.iinfo(narrow)
    if wide.is_floating_point:
        return max(-values.min, values.max) <= 2 / torch.finfo(wide).eps
    return torch.iinfo(wide).min <= values.min and values.max <= torch.iinfo(wide).max


def _converted(graph: GraphView, node: Any) -> tuple[Bound | None, Node | None]:
    """A call that converts and does nothing else, and what it converts."""
    bound = graph.bind(node) if isinstance(node, Node) else None
    if not isinstance(bound, Bound) or bound.packet not in CONVERSIONS:
        return None, None
    source = bound["a" if bound.packet is prims.convert_element_type else "self"]
    value, result = tensor_of(source), tensor_of(node)
    only_converts = bound.packet is prims.convert_element_type or bound.given <= {"self", "dtype"}
    if not only_converts or value is None or result is None or value.dtype is result.dtype:
        return None, None
    return bound, source
