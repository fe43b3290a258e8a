"""Traces a value through views back to its source, as an index map."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import FakeTensor
from eductor.graph import Bound, GraphView, known_equal, known_true, tensor_of, value_of
from eductor.views.index_map import IndexMap

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ViewCall:
    """One view: its operand, the kind of its operator, and what it does to an index map."""

    operand: Node
    kind: str
    """`split` for pieces and slices, `unbind` for views that drop a dimension, else the name of the operator."""
    apply: Callable[[IndexMap], IndexMap | None]
    through: tuple[Node, ...] = ()
    """The call of which the view is one of several results."""


@dataclass(frozen=True, slots=True)
class SourceView:
    """A value as an index map of its source, with the nodes in between, source first, and the kinds of their operators."""

    index_map: IndexMap
    nodes: tuple[Node, ...] = ()
    kinds: frozenset[str] = frozenset()


def source_view(graph: GraphView, node: Node) -> SourceView | None:
    """A value as a view of the furthest source that it can be traced back to."""
    return graph.derived_of(node, source_view_through)


def source_view_through(
    graph: GraphView, node: Node, passes: Callable[[Node], bool] = lambda _: True
) -> SourceView | None:
    """A value as a view of the nearest value behind it for which `passes` is false."""
    calls: list[tuple[Node, ViewCall]] = []
    source = node
    while (source is node or passes(source)) and (call := view_call(graph, source)) is not None:
        calls.append((source, call))
        source = call.operand
    found = graph.derived_of(source, _source)
    for node, call in reversed(calls):
        index_map = call.apply(found.index_map) if found is not None else None
        if found is None or index_map is None:
            found = graph.derived_of(node, _source)
        else:
            found = SourceView(index_map, (*found.nodes, *call.through, node), found.kinds | {call.kind})
    return found


def _source(graph: GraphView, node: Node) -> SourceView | None:
    """A value as its own source; None unless it is a plain tensor with elements."""
    tensor = tensor_of(node)
    if tensor is None or type(tensor) not in (FakeTensor, torch.Tensor, torch.nn.Parameter) or tensor.is_nested:
        return None
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return None
    return (
        None if any(known_equal(s, 0) for s in tensor.shape) else SourceView(IndexMap.whole(node, tuple(tensor.shape)))
    )


# --------------------------------------------------------------------------------------------------- one view


def view_call(graph: GraphView, node: Node) -> ViewCall | None:
    """How a node views its operand; None unless it is known to be a view."""
    if node.op not in ("call_function", "call_method"):
        return None
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        if tensor_of(node.args[0]) is not None:
            return _item(node.args[0], node.args[1])
        return _piece(node.args[0], division(graph, node.args[0]), node.args[1])
    bound, result = graph.bind(node), tensor_of(node)
    found = _VIEWS.get(bound.packet) if isinstance(bound, Bound) else None
    operand = tensor_of(bound.get("self")) if isinstance(bound, Bound) else None
    if found is None or not isinstance(bound, Bound) or result is None or operand is None:
        return None
    if result.dtype != operand.dtype:  # `x.view(torch.int32)`
        return None
    kind, make = found
    apply = make(node, bound)
    return ViewCall(bound["self"], kind, apply) if apply is not None else None


Apply = Callable[[IndexMap], IndexMap | None]
Make = Callable[[Node, Bound], Apply | None]


def _reshape(node: Node, bound: Bound) -> Apply:
    shape = tuple(value_of(node).shape)
    return lambda index_map: index_map.reshape(shape)


def _permute(node: Node, bound: Bound) -> Apply | None:
    rank = value_of(node).dim()
    order = order_of(bound, rank)
    return (lambda index_map: index_map.permute(order)) if order is not None else None


def order_of(bound: Bound, rank: int) -> list[int] | None:
    """The dimensions of the operand in the order of the result."""
    packet, plain = bound.packet, list(range(rank))
    if packet is aten.permute:
        return [d % rank for d in bound["dims"]]
    if packet in (aten.t, aten.numpy_T):
        return plain[::-1]
    if packet is aten.movedim:
        source, destination = (_dims(bound[name], rank) for name in ("source", "destination"))
        left = iter(d for d in plain if d not in source)
        return [source[destination.index(d)] if d in destination else next(left) for d in plain]
    if packet is aten.mT and rank < 2:
        return None
    a, b = (rank - 2, rank - 1) if packet is aten.mT else (bound["dim0"] % max(rank, 1), bound["dim1"] % max(rank, 1))
    if rank:
        plain[a], plain[b] = plain[b], plain[a]
    return plain


def _dims(given: Any, rank: int) -> list[int]:
    return [d % rank for d in (given if isinstance(given, (list, tuple)) else [given])]


def _select(node: Node, bound: Bound) -> Apply | None:
    dim, size = _dim(bound)
    index = _from_start(value_of(bound["index"]), size)
    return (lambda index_map: index_map.select(dim, index)) if index is not None else None


def _slice(node: Node, bound: Bound) -> Apply | None:
    dim, size = _dim(bound)
    return _sliced(dim, size, value_of(bound["start"]), value_of(node).shape[dim], value_of(bound["step"]))


def _narrow(node: Node, bound: Bound) -> Apply | None:
    dim, size = _dim(bound)
    start = value_of(bound["start"])
    return _sliced(dim, size, start, value_of(node).shape[dim], 1) if not isinstance(start, torch.Tensor) else None


def _dim(bound: Bound) -> tuple[int, Any]:
    tensor = tensor_of(bound["self"])
    assert tensor is not None
    dim = bound["dim"] % tensor.dim()
    return dim, tensor.shape[dim]


def _sliced(dim: int, size: Any, start: Any, length: Any, step: Any) -> Apply | None:
    """`length` is the size of the result, after bounds beyond the operand's size were clamped."""
    first = _from_start(0 if start is None else start, size)
    if first is None or not isinstance(step, int):
        return None
    return lambda index_map: index_map.narrow(dim, first, length, step)


def _from_start(index: Any, size: Any) -> Any:
    """An index counted from the start; None where its sign is not known, or it is out of range."""
    if known_true(index < 0):
        index = index + size
    return index if known_true(index >= 0) and known_true(index <= size) else None


_VIEWS: dict[Any, tuple[str, Make]] = {
    **dict.fromkeys((aten.reshape, aten.view, aten._unsafe_view, aten.flatten, aten.unflatten), ("reshape", _reshape)),
    **dict.fromkeys((aten.view_as, aten.reshape_as), ("reshape", _reshape)),
    aten.squeeze: ("squeeze", _reshape),
    aten.unsqueeze: ("unsqueeze", _reshape),
    **dict.fromkeys((aten.permute, aten.transpose, aten.t, aten.mT, aten.numpy_T, aten.movedim), ("permute", _permute)),
    aten.select: ("unbind", _select),
    aten.slice: ("split", _slice),
    aten.narrow: ("split", _narrow),
}


RESHAPES = frozenset(packet for packet, (kind, _) in _VIEWS.items() if kind not in ("split", "unbind"))
"""The operators whose result has every element of the operand once, in another shape or order."""


# --------------------------------------------------------------------------------- one of several results, an index

SPLITS = (
    *(aten.split, aten.split_with_sizes, aten.chunk, aten.tensor_split, aten.unsafe_split, aten.unsafe_chunk),
    *(aten.unsafe_split_with_sizes, aten.hsplit, aten.vsplit, aten.dsplit),
)


@dataclass(frozen=True, slots=True)
class Division:
    """A call that divides a tensor along a dimension into pieces of these sizes; pieces of `unbind` drop the dimension."""

    operand: Node
    dim: int
    sizes: tuple[Any, ...]
    starts: tuple[Any, ...]
    drops: bool


def division(graph: GraphView, call: Node) -> Division | None:
    """How a call divides its operand; None for any other call."""
    return graph.derived_of(call, _division)


def _division(graph: GraphView, call: Node) -> Division | None:
    bound = graph.bind(call)
    if not isinstance(bound, Bound) or bound.packet not in (*SPLITS, aten.unbind):
        return None
    tensor, pieces = tensor_of(bound["self"]), value_of(call)
    if tensor is None or not isinstance(pieces, (list, tuple)) or not tensor.dim():
        return None
    dim = _split_dim(bound, tensor.dim())
    drops = bound.packet is aten.unbind
    sizes = tuple(1 if drops else piece.shape[dim] for piece in pieces)
    starts = tuple(itertools.accumulate(sizes, initial=0))[:-1]
    return Division(bound["self"], dim, sizes, starts, drops)


def _split_dim(bound: Bound, rank: int) -> int:
    """`hsplit` divides the second dimension, or the only one; most others take it as an argument."""
    named = {aten.hsplit: min(1, rank - 1), aten.vsplit: 0, aten.dsplit: 2}
    return named[bound.packet] if bound.packet in named else int(bound["dim"]) % rank


def _piece(call: Node, found: Division | None, index: Any) -> ViewCall | None:
    if found is None or not isinstance(index, int) or not -len(found.sizes) <= index < len(found.sizes):
        return None
    index %= len(found.sizes)
    start, size, dim = found.starts[index], found.sizes[index], found.dim
    if found.drops:
        return ViewCall(found.operand, "unbind", lambda index_map: index_map.select(dim, start), (call,))
    return ViewCall(found.operand, "split", lambda index_map: index_map.narrow(dim, start, size), (call,))


def _item(tensor: Node, index: Any) -> ViewCall | None:
    """`x[0, :, 2:4, None, ...]`: integers, slices, None and an ellipsis; None for an index that gathers."""
    parts = list(index) if isinstance(index, tuple) else [index]
    value = tensor_of(tensor)
    if value is None or not all(_is_plain(part) for part in parts):
        return None
    used = sum(part is not None and part is not ... for part in parts)
    at = parts.index(...) if ... in parts else len(parts)
    whole = [slice(None)] * (value.dim() - used)
    parts = [*parts[:at], *whole, *parts[at + 1 :]]
    return ViewCall(tensor, _kind_of_item(parts), lambda index_map: _indexed(index_map, parts))


def _is_plain(part: Any) -> bool:
    if isinstance(part, slice):
        return all(x is None or type(x) is int for x in (part.start, part.stop, part.step))
    return part is None or part is ... or type(part) is int


def _kind_of_item(parts: Sequence[Any]) -> str:
    if any(type(part) is int for part in parts):
        return "unbind"
    return "unsqueeze" if None in parts and all(part in (None, slice(None)) for part in parts) else "split"


def _indexed(index_map: IndexMap, parts: Sequence[Any]) -> IndexMap | None:
    dim = 0
    found: IndexMap | None = index_map
    for part in parts:
        if found is None:
            return None
        if part is None:
            found = found.unsqueeze(dim)
        elif type(part) is int:
            first = _from_start(part, found.shape[dim])
            found = found.select(dim, first) if first is not None else None
            continue
        elif part != slice(None):
            size = found.shape[dim]
            if not isinstance(size, int):
                return None
            indices = range(*part.indices(size))
            found = found.narrow(dim, indices.start, len(indices), indices.step)
        dim += 1
    return found
