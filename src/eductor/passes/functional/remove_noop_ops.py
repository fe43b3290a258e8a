"""Removes operators that return what they were given: full slices, views of the same shape, needless copies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from eductor.graph.bind import Bound
from eductor.graph.meta import difference, known_equal, known_true, tensor_of, value_of
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import f32, i64, rule_pass

aten = torch.ops.aten
prims = torch.ops.prims


@rule_pass(stage=("joint", "post_grad"), numerics="exact")
def remove_noop_ops() -> None:
    """Removes operators that return what they were given: full slices, views of the same shape, needless copies."""


def _no_op(*operators: Any, source: str = "self") -> Callable[[Callable[[Bound], bool]], Callable[..., None]]:
    """Declares a rule: calls of the operators, where the condition holds, are the argument `source`."""

    def declare(condition: Callable[[Bound], bool]) -> Callable[..., None]:
        def rule(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
            bound = graph.bind(node)
            if not isinstance(bound, Bound) or not condition(bound):
                return
            given = bound[source][0] if source == "tensors" else bound[source]
            if not isinstance(given, Node):
                return
            unlike = difference(value_of(node), value_of(given))
            if unlike:
                rewrite.reject(f"the result differs from {given.name}: {unlike}", node)
            elif not (verdict := graph.effects.may_alias(node, given)):
                rewrite.reject(verdict.reason, node)
            else:
                rewrite.replace(node, given)

        return remove_noop_ops.rule(*operators, name=condition.__name__)(rule)

    return declare


def _is_whole(bound: Bound, size: Any) -> bool:
    start, end = bound["start"], bound["end"]
    from_start = start is None or known_equal(value_of(start), 0)
    to_end = end is None or value_of(end) == sys.maxsize or known_true(value_of(end) >= size)
    return from_start and to_end and known_equal(value_of(bound["step"]), 1)


def _size(bound: Bound) -> Any:
    tensor = tensor_of(bound["self"])
    return tensor.shape[bound["dim"]] if tensor is not None and tensor.dim() else None


@_no_op(aten.slice.Tensor)
def full_slice(bound: Bound) -> bool:
    return _size(bound) is not None and _is_whole(bound, _size(bound))


@_no_op(aten.slice_scatter.default, source="src")
def full_slice_scatter(bound: Bound) -> bool:
    return _size(bound) is not None and _is_whole(bound, _size(bound))


@_no_op(
    *(aten.view.default, aten.reshape, aten._unsafe_view, aten.expand, aten.permute, aten.transpose, aten.squeeze),
    *(aten.view.dtype, aten.as_strided),
)
def same_view(bound: Bound) -> bool:
    """A view of the same geometry on the same memory is the same tensor."""
    inner, op = tensor_of(bound["self"]), bound.op
    if inner is None:
        return False
    if op is aten.view.dtype:
        return bool(bound["dtype"] == inner.dtype)
    if op in (aten.permute.default, aten.transpose.int):
        given = bound["dims"] if "dims" in bound.arguments else [bound["dim0"], bound["dim1"]]
        dims = [d % max(inner.dim(), 1) for d in given]
        return dims == sorted(dims) if op is aten.permute.default else dims[0] == dims[1]
    if op is aten.as_strided.default:
        geometry = (bound["size"], bound["stride"], bound["storage_offset"])
        return bound["storage_offset"] is not None and all(map(known_equal, _values(geometry), _geometry(inner)))
    if op.overloadpacket is aten.squeeze:
        return not any(known_equal(size, 1) for size in inner.shape)
    return known_equal([s for s in map(value_of, bound["size"]) if s != -1], _without_wildcards(bound["size"], inner))


def _values(geometry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    size, stride, offset = geometry
    return [value_of(s) for s in size], [value_of(s) for s in stride], value_of(offset)


def _geometry(tensor: torch.Tensor) -> tuple[Any, Any, Any]:
    return list(tensor.shape), list(tensor.stride()), tensor.storage_offset()


def _without_wildcards(sizes: list[Any], tensor: torch.Tensor) -> list[Any]:
    """The tensor's own sizes where the view names one; a view of another rank never compares equal."""
    if len(sizes) != tensor.dim():
        return [None]
    return [own for own, s in zip(tensor.shape, sizes, strict=True) if value_of(s) != -1]


@_no_op(aten.repeat)
def repeat_once(bound: Bound) -> bool:
    return all(known_equal(value_of(r), 1) for r in bound["repeats"])


@_no_op(aten.constant_pad_nd)
def empty_pad(bound: Bound) -> bool:
    return all(known_equal(value_of(p), 0) for p in bound["pad"])


@_no_op(prims.convert_element_type, source="a")
def same_dtype(bound: Bound) -> bool:
    tensor = tensor_of(bound["a"])
    return tensor is not None and bool(bound["dtype"] == tensor.dtype)


@_no_op(prims.device_put, source="a")
def same_device(bound: Bound) -> bool:
    tensor = tensor_of(bound["a"])
    return tensor is not None and torch.device(bound["device"]) == tensor.device


@_no_op(aten.ceil, aten.floor, aten.round, aten.trunc)
def rounded_integers(bound: Bound) -> bool:
    tensor = tensor_of(bound["self"])
    integers = tensor is not None and not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    return integers and bound.get("decimals", 0) == 0


@_no_op(aten.pow.Tensor_Scalar)
def first_power(bound: Bound) -> bool:
    return not isinstance(bound["exponent"], bool) and bound["exponent"] == 1


@_no_op(aten.cat, source="tensors")
def cat_of_one(bound: Bound) -> bool:
    return len(bound["tensors"]) == 1


@_no_op(aten.copy.default, source="src")
def copy_over(bound: Bound) -> bool:
    """A copy into a tensor whose contents nobody reads, unless that tensor lies in pinned memory."""
    into = bound["self"]
    return not (isinstance(into, Node) and into.kwargs.get("pin_memory"))


@_no_op(aten.alias, aten.clone, aten._to_copy, aten.lift_fresh_copy, aten.detach)
def copy(bound: Bound) -> bool:
    """Whether a copy in another dtype, device or memory format is one is for the metadata to tell."""
    return True


@remove_noop_ops.example
def needless_clone(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.clone() + 1


@remove_noop_ops.example
def view_of_the_same_shape(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.view(2, 3)[:, 0:3].cos()


@remove_noop_ops.example
def rounding_of_integers(x: torch.Tensor = i64(4)) -> torch.Tensor:
    return torch.floor(x) * 2


@remove_noop_ops.refuses("leaves the graph")
def copy_that_is_returned(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.clone().t()


@remove_noop_ops.refuses("an output of its own")
def view_that_is_returned(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.view(2, 3)


@remove_noop_ops.refuses("strides")
def copy_into_another_layout(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.t().clone(memory_format=torch.contiguous_format) + 1
