"""Transparent nodes: those without effect, and those that a tolerance skips."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import Bound, bind, difference, known_equal, requires_grad, tensor_of, value_of
from eductor.graph.reading.bind import packets_of
from eductor.patterns.language.pattern import Tolerance
from eductor.patterns.match.call_reading import Reading, made

aten = torch.ops.aten
prims = torch.ops.prims
CAST = prims.convert_element_type

VIEWS = (aten.view, aten.reshape, aten._unsafe_view, aten._reshape_copy, aten.view_copy)
PERMUTES = (aten.permute, aten.transpose, aten.t, aten.mT, aten.numpy_T, aten.permute_copy, aten.transpose_copy)
CASTS = (CAST, aten._to_copy, aten.to, aten.type_as)
_CAST = made("a", "dtype")


def transparent(node: Node, tolerated: frozenset[Tolerance]) -> Node | None:
    """The operand of a node that changes nothing, or nothing that counts: a cast between floating dtypes, a factor 1."""
    if node.op not in ("call_function", "call_method"):
        return None
    operand = node.args[0] if node.args else None
    packet = _packet(node)
    if packet in _IDLE and isinstance(operand, Node) and _is_idle(node, packet, operand):
        detached = packet is aten.detach and requires_grad(value_of(operand))
        return None if detached else operand
    if not tolerated:
        return None
    if "casts" in tolerated:
        cast = _cast(node)
        if cast is not None and _is_ordinary(tensor_of(cast.values[0])) and _is_ordinary(tensor_of(node)):
            return cast.values[0]  # type: ignore[no-any-return]
    if "scale" in tolerated:
        bound = bind(node)
        if isinstance(bound, Bound) and bound.packet in (aten.mul, aten.div) and bound.get("rounding_mode") is None:
            operand, factor = bound["self"], bound["other"]
            here, there = tensor_of(operand), tensor_of(node)
            if is_number(factor) and factor == 1 and here is not None and there is not None:
                return operand if here.dtype == there.dtype else None
    return None


def _packet(node: Node) -> Any:
    """The operator that a node calls, or None."""
    if isinstance(node.target, OpOverload):
        return node.target.overloadpacket
    packets = packets_of(node.target)
    if packets is None:
        bound = bind(node)
        return bound.packet if isinstance(bound, Bound) else None
    return packets[0] if packets else None


_COPIES = frozenset((aten.clone, aten._to_copy, aten.contiguous, aten.to, aten.type_as))
_IDLE = frozenset((*VIEWS, *PERMUTES, aten.expand, aten.alias, aten.detach, aten.pow)) | _COPIES
"""What often changes nothing."""


def is_idle(node: Node, operand: Node) -> bool:
    """Whether a call that can only view or copy its operand gives the same value; the strides of a copy may differ."""
    packet = _packet(node)
    return packet in _IDLE and _is_idle(node, packet, operand)


def _is_idle(node: Node, packet: Any, operand: Node) -> bool:
    here, there = tensor_of(node), tensor_of(operand)
    if here is None or there is None or here.dim() != there.dim():
        return False
    if packet is aten.pow and (len(node.args) != 2 or node.args[1] != 1):
        return False  # the backward of a square has `x ** 1`, which a cleaned graph does not
    if packet in _COPIES:
        same = here.dtype == there.dtype and here.device == there.device and here.layout == there.layout
        return same and known_equal(list(here.shape), list(there.shape))
    return difference(here, there) is None


def _is_ordinary(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor is of a dtype to compute in: a conversion to eight bits is quantization."""
    return tensor is not None and tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def is_float(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.dtype.is_floating_point


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cast(node: Node) -> Reading | None:
    if node.op not in ("call_function", "call_method"):
        return None
    bound = bind(node)
    return as_cast(node, bound) if isinstance(bound, Bound) and bound.packet in CASTS else None


def as_cast(node: Node, bound: Bound) -> Reading | None:
    """A conversion that changes the dtype and nothing else."""
    if bound.packet is CAST:
        return Reading(node, CAST, None, _CAST, (bound["a"], bound["dtype"]))
    here, there = tensor_of(bound["self"]), tensor_of(node)
    if here is None or there is None or here.dtype == there.dtype:
        return None
    kept = here.device == there.device and here.layout == there.layout
    usual = bound.get("memory_format") in (None, torch.preserve_format) and not bound.get("pin_memory")
    return Reading(node, CAST, None, _CAST, (bound["self"], there.dtype)) if kept and usual else None
