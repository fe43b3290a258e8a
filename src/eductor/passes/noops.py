"""Conditions under which a call is a no-op, by operator, shared by passes of several stages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, difference, known_equal, known_true, tensor_of, value_of
from eductor.pipeline.rule_pass import RulePass

aten = torch.ops.aten

Condition = Callable[[Bound], bool | No]
"""Whether a call is a no-op; No says why a call that looks like one is not."""

Allowed = Callable[[GraphView, Node, Node], Literal[True] | No]
"""Whether a node may be replaced by its operand."""


def may_be_alias(graph: GraphView, node: Node, given: Node) -> Literal[True] | No:
    """Whether a node, which may own its memory, may become an alias of its operand."""
    return graph.effects.may_alias(node, given)


def no_op(
    pass_: RulePass,
    condition: Condition,
    *operators: Any,
    source: str = "self",
    allowed: Allowed = may_be_alias,
    name: str | None = None,
) -> None:
    """Adds a rule to a pass: where the condition holds, calls of the operators are replaced by their argument `source`."""

    def rule(graph: GraphView, rewrite: Rewriter, node: Node) -> No | None:
        bound = graph.bind(node)
        if not isinstance(bound, Bound):
            return bound
        holds = condition(bound)
        if not holds and not isinstance(holds, No):
            return None
        given = bound[source][0] if source == "tensors" else bound[source]
        if not isinstance(given, Node):
            return None
        if isinstance(holds, No):
            return holds
        replace_by_equal(graph, rewrite, node, given, allowed)
        return None

    pass_.rule(*operators, name=name or condition.__name__)(rule)


def replace_by_equal(
    graph: GraphView, rewrite: Rewriter, node: Node, given: Node, allowed: Allowed = may_be_alias
) -> None:
    """Replaces a node by one with the same elements, if it is alike and the aliases that this makes are allowed."""
    verdict = _is_alike(node, given) and allowed(graph, node, given)
    if verdict:
        rewrite.replace(node, given)
    else:
        rewrite.reject(verdict, node)


def _is_alike(node: Node, given: Node) -> Literal[True] | No:
    if tensor_of(given) is None:
        return No(f"the value of {given.name} is not known", given)
    unlike = difference(value_of(node), value_of(given))
    return No(f"the result differs from {given.name}: {unlike}", given) if unlike else True


# ------------------------------------------------------------------------------------------------------------- views


def full_slice(bound: Bound) -> bool:
    tensor = tensor_of(bound["self"])
    if tensor is None or not tensor.dim():
        return False
    start, end, size = bound["start"], bound["end"], tensor.shape[bound["dim"]]
    from_start = start is None or known_equal(value_of(start), 0)
    to_end = end is None or value_of(end) == sys.maxsize or known_true(value_of(end) >= size)
    return from_start and to_end and known_equal(value_of(bound["step"]), 1)


def same_view(bound: Bound) -> bool:
    """Whether a view has the geometry of its operand, with the elements in the same order."""
    inner, op = tensor_of(bound["self"]), bound.op
    if inner is None:
        return False
    if op is aten.view.dtype:
        return bool(bound["dtype"] == inner.dtype)
    if op.overloadpacket in (aten.permute, aten.transpose):
        given = bound["dims"] if "dims" in bound.arguments else [bound["dim0"], bound["dim1"]]
        dims = [d % max(inner.dim(), 1) for d in given]
        return dims == sorted(dims) if op.overloadpacket is aten.permute else dims[0] == dims[1]
    if op is aten.as_strided.default:
        offset = value_of(bound["storage_offset"])
        geometry = (_numbers(bound["size"]), _numbers(bound["stride"]), offset)
        own = (list(inner.shape), list(inner.stride()), inner.storage_offset())
        return offset is not None and all(map(known_equal, geometry, own))
    if op.overloadpacket is aten.squeeze:
        return not any(known_equal(inner.shape[d], 1) for d in _squeezed(bound, inner))
    if op.overloadpacket in (aten.expand_as, aten.view_as):
        other = tensor_of(bound["other"])
        return other is not None and known_equal(tuple(other.shape), tuple(inner.shape))
    sizes = _numbers(bound["shape"] if "shape" in bound.arguments else bound["size"])
    named = [own if _is_number(size, -1) else size for size, own in zip(sizes, inner.shape, strict=False)]
    return len(sizes) == inner.dim() and known_equal(named, list(inner.shape))


def _squeezed(bound: Bound, tensor: torch.Tensor) -> Any:
    dims = bound.get("dim", range(tensor.dim()))
    return ([dims] if isinstance(dims, int) else dims) if tensor.dim() else []


def _numbers(given: Any) -> list[Any]:
    """The values of a list of sizes, or of a node that is such a list."""
    return [value_of(size) for size in value_of(given)]


# ------------------------------------------------------------------------------------------------------------ copies


def copy(bound: Bound) -> bool:
    """Any copy: `no_op` compares dtype, device and strides before it replaces one."""
    return True


def repeat_once(bound: Bound) -> bool:
    times = bound["repeats"] if "repeats" in bound.arguments else bound["dims"]
    return all(known_equal(r, 1) for r in _numbers(times))


def empty_pad(bound: Bound) -> bool:
    return all(known_equal(p, 0) for p in _numbers(bound["pad"]))


def cat_of_one(bound: Bound) -> bool:
    return isinstance(bound["tensors"], (list, tuple)) and len(bound["tensors"]) == 1


# -------------------------------------------------------------------------------------------------------- arithmetic


def rounded_integers(bound: Bound) -> bool:
    return _is_whole(bound) and bound.get("decimals", 0) == 0


def first_power(bound: Bound) -> bool:
    return _is_number(bound["exponent"], 1)


def times_one(bound: Bound) -> bool | No:
    """Products and quotients with 1 are exact, except that a complex infinity is multiplied by the zero of 1 + 0j."""
    if not _is_number(bound["other"], 1) or bound.get("rounding_mode") is not None:
        return False
    tensor = tensor_of(bound["self"])
    return No("a complex infinity times 1 is NaN") if tensor is not None and tensor.is_complex() else True


def minus_zero(bound: Bound) -> bool | No:
    """Subtracting 0 is exact; subtracting -0.0 adds 0.0."""
    if not _is_number(bound["other"], 0) or bound["alpha"] != 1:
        return False
    return No("subtracting -0.0 adds 0.0, and -0.0 becomes 0.0") if str(bound["other"]).startswith("-") else True


def plus_zero(bound: Bound) -> bool | No:
    """Adding 0 is exact for integers alone, which have no -0.0."""
    if not _is_number(bound["other"], 0) or bound["alpha"] != 1:
        return False
    return True if _is_whole(bound) else No("in a sum with 0, -0.0 becomes 0.0")


IN_BOTH: dict[Condition, tuple[Any, ...]] = {
    full_slice: (aten.slice,),
    repeat_once: (aten.repeat, aten.tile),
    empty_pad: (aten.pad, aten.constant_pad_nd),
    rounded_integers: (aten.ceil, aten.floor, aten.round, aten.trunc),
    first_power: (aten.pow,),
}
"""The conditions that hold before autograd and after it, with their operators."""


def no_ops_of_both(pass_: RulePass, allowed: Allowed = may_be_alias) -> None:
    """Adds the rules that a pass before autograd and one after it have in common."""
    for condition, operators in IN_BOTH.items():
        no_op(pass_, condition, *operators, allowed=allowed)
    no_op(pass_, cat_of_one, aten.cat, source="tensors", allowed=allowed)


def _is_number(given: Any, number: int) -> bool:
    return type(given) in (int, float) and given == number


def _is_whole(bound: Bound) -> bool:
    tensor = tensor_of(bound["self"])
    return tensor is not None and not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
