"""Smaller forms of what is saved, from which the backward gets the value itself: flags as bits, indices in few bytes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from eductor.cost import Device
from eductor.graph.reading.bind import Bound, bind
from eductor.graph.values.meta import CAME_FROM, tensor_of, value_of
from eductor.partition.node_info import NodeInfo

aten, prims = torch.ops.aten, torch.ops.prims

_CONVERT = prims.convert_element_type.default

LEAST = 1 << 16
"""Elements of a value that is worth the kernels."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is saved."""

    name: str
    bytes: int
    pack: Callable[[Graph, Node], Node]
    """Adds what makes the small form of a value to the forward graph."""
    unpack: Callable[[Graph, Node], Node]
    """Adds what makes the value from its small form to the backward graph."""

    def value(self, node: Node) -> torch.Tensor:
        """A fake value of the small form."""
        graph = Graph()
        given = graph.placeholder("given")
        given.meta["val"] = value_of(node)
        small: torch.Tensor = value_of(self.pack(graph, given))
        return small


def forms_of(info: NodeInfo, nodes: Iterable[Node], device: Device) -> dict[Node, Form]:
    """The small forms of values, as far as they have one; what the caller sees is saved as it is."""
    found = ((node, form_of(node, device)) for node in nodes if node not in info.exposed)
    return {node: form for node, form in found if form is not None}


def form_of(node: Node, device: Device) -> Form | None:
    """The small form in which a value is saved on a device; None for the value as it is."""
    value = tensor_of(node)
    if value is None or value.dtype not in (torch.bool, torch.int64) or node.op != "call_function":
        return None
    if not device.fuses or not _is_plain(value):
        return None
    if value.dtype == torch.bool and device.packs_bits and value.numel() % 8 == 0:
        return Form("as bits", value.numel() // 8, _to_bits, lambda graph, packed: _from_bits(graph, packed, value))
    largest = _largest_index(node) if value.dtype == torch.int64 else None
    small = next((d for d in _INDICES if largest is not None and largest <= torch.iinfo(d).max), None)
    if small is None:
        return None
    return Form(
        f"as {str(small).removeprefix('torch.')}",
        value.numel() * small.itemsize,
        lambda graph, wide: _call(graph, _CONVERT, wide, small),
        lambda graph, packed: _call(graph, _CONVERT, packed, torch.int64),
    )


def _is_plain(value: torch.Tensor) -> bool:
    """Whether a value has a known size, that is large enough, and lies in memory in the order of its elements."""
    sizes = (*value.shape, *value.stride())
    return all(isinstance(n, int) for n in sizes) and value.is_contiguous() and value.numel() >= LEAST


def _to_bits(graph: Graph, flags: Node) -> Node:
    """Eight flags in a byte, the first one lowest."""
    rows = _call(graph, aten.view.default, _call(graph, _CONVERT, flags, torch.uint8), [-1, 8])
    byte = _call(graph, aten.select.int, rows, 1, 0)
    for bit in range(1, 8):
        column = _call(graph, aten.select.int, rows, 1, bit)
        shifted = _call(graph, aten.bitwise_left_shift.Tensor_Scalar, column, bit)
        byte = _call(graph, aten.bitwise_or.Tensor, byte, shifted)
    return byte


def _from_bits(graph: Graph, packed: Node, like: torch.Tensor) -> Node:
    places: dict[str, Any] = {
        "start": 0,
        "step": 1,
        "dtype": torch.uint8,
        "device": like.device,
        "requires_grad": False,
    }
    shifts = graph.call_function(prims.iota.default, (8,), places)
    shifts.meta.update(_told(packed))
    with value_of(packed).fake_mode:
        shifts.meta["val"] = prims.iota.default(8, **places)
    column = _call(graph, aten.unsqueeze.default, packed, -1)
    bits = _call(graph, aten.bitwise_right_shift.Tensor, column, shifts)
    flags = _call(graph, _CONVERT, _call(graph, aten.bitwise_and.Scalar, bits, 1), torch.bool)
    return _call(graph, aten.view.default, flags, [*like.shape])


def _call(graph: Graph, target: Any, first: Node, *args: Any) -> Node:
    """A new node with its fake value; the engine's decompositions are over, so it must be an operator that engines know."""
    node = graph.call_function(target, (first, *args))
    node.meta.update(_told(first))
    with value_of(first).fake_mode:
        node.meta["val"] = target(*map(_value, (first, *args)))
    return node


def _told(node: Node) -> dict[str, Any]:
    """What a node says of where it comes from."""
    return {key: node.meta[key] for key in ("stack_trace", "nn_module_stack", CAME_FROM) if key in node.meta}


def _value(given: Any) -> Any:
    return value_of(given) if isinstance(given, Node) else given


_INDICES = (torch.uint8, torch.int16, torch.int32)
_PICKS = frozenset({"max", "min", "sort", "topk", "kthvalue", "mode", "median", "nanmedian", "cummax", "cummin"})
"""Operators whose second result is, for each of the first one, its index in a dimension."""
_SEARCHES = frozenset({"argmax", "argmin", "argsort"})


def _largest_index(node: Node) -> int | None:
    """The largest index that a node can give, if its result is indices into a dimension of known size."""
    is_second = node.target is operator.getitem and node.args[1] == 1
    call = node.args[0] if is_second else node
    bound = bind(call) if isinstance(call, Node) and call.op == "call_function" else None
    if not isinstance(bound, Bound):
        return None
    name = bound.packet.__name__
    given = tensor_of(bound["self"]) if name in (_PICKS if is_second else _SEARCHES) else None
    if given is None or not all(isinstance(n, int) for n in given.shape):
        return None
    dim = bound.get("dim")
    return (given.numel() if dim is None else given.shape[dim] if given.dim() else 1) - 1
