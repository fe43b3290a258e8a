"""Chains of dtype conversions: one is enough where the first is lossless."""

from __future__ import annotations

import torch

from eductor.graph import Bound, GraphView, Rewriter, value_of
from eductor.passes.noops import replace_by_equal
from eductor.patterns import ANY, Match, const, op, var

aten = torch.ops.aten
prims = torch.ops.prims

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

_CONVERT = prims.convert_element_type
TWO_CONVERSIONS = op(_CONVERT, op(_CONVERT, var("x"), const("between"), users=ANY), const("last"))
"""Calls that convert and do nothing else; `_to_copy` with a dtype alone is one of them."""


def one_conversion(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    """`convert(convert(x, wide), d)` is `convert(x, d)`, or `x`, where `wide` has all values of x's dtype."""
    node, source = match.output, match["x"]
    outer = graph.bind(node)
    assert isinstance(outer, Bound)
    first, middle, last = (value_of(n).dtype for n in (source, match.nodes[0], node))
    reason = why_not(first, middle, last)
    if reason:
        rewrite.reject(reason, node, match.nodes[0])
    elif first is not last and outer.packet is aten._to_copy:
        rewrite.replace(node, outer.op, source, dtype=last)
    elif first is not last:
        rewrite.replace(node, outer.op, source, last)
    else:
        replace_by_equal(graph, rewrite, node, source)


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
    if wide.is_floating_point and not narrow.is_floating_point and narrow is not torch.bool:
        # Torch promotes every integer to every float.
        return max(-torch.iinfo(narrow).min, torch.iinfo(narrow).max) <= 2 / torch.finfo(wide).eps
    return torch.promote_types(wide, narrow) is wide
