"""Tokens of calls: equal for calls of the same operator on operands of the same types, whatever computed these."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import effect_of, value_of
from eductor.ops.random import SEEDED

_ALIGNMENT = 16
"""Bytes to which a generated kernel may assume that an operand is aligned, because the first one was."""


class Types:
    """The types of nodes, as hashable values."""

    def __init__(self) -> None:
        self._known: dict[Node, Hashable] = {}

    def of(self, node: Node) -> Hashable:
        """The dtype, sizes, strides and device of a node's value; None for what is no strided tensor of known sizes."""
        if node not in self._known:
            self._known[node] = _type(value_of(node))
        return self._known[node]

    def aligned(self, node: Node) -> Hashable:
        """The type of an operand, with the place of its memory relative to the alignment of kernels."""
        value = value_of(node)
        offset = value.storage_offset() * value.element_size() if isinstance(value, torch.Tensor) else 0
        return self.of(node), offset % _ALIGNMENT


def _type(value: Any) -> Hashable:
    if isinstance(value, (tuple, list)):
        types = tuple(map(_type, value))
        return None if not types or None in types else types
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_complex():
        return None
    sizes, strides = tuple(value.shape), tuple(value.stride())
    if not all(type(size) is int for size in (*sizes, *strides, value.storage_offset())):
        return None
    return value.dtype, sizes, strides, value.device


def tokens_of(calls: Sequence[Node], types: Types) -> list[int]:
    """A number for each call; a call that cannot be in a shared body has one of its own."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_token(call, types) or object(), len(numbers)) for call in calls]


def _token(call: Node, types: Types) -> Hashable:
    """The token of a call; None if it cannot be shared."""
    result = types.of(call)
    operands = [types.of(operand) for operand in call.all_input_nodes]
    is_operator = isinstance(call.target, OpOverload) or call.target is operator.getitem
    if result is None or None in operands or not is_operator or not effect_of(call).removable:
        return None
    return call.target, *spelled(call, types.of), result


def spelled(call: Node, of_node: Callable[[Node], Hashable]) -> tuple[Hashable, ...]:
    """The arguments of a call as hashable values, where `of_node` stands for a node.

    The index of a seeded draw is left out: each region gets its own seed as an operand.
    """
    args = (call.args[0], *call.args[2:]) if is_seeded(call) else call.args
    return _spell(args, of_node), _spell(call.kwargs, of_node)


def _spell(value: Any, of_node: Callable[[Node], Hashable]) -> Hashable:
    if isinstance(value, Node):
        return of_node(value)
    if isinstance(value, (list, tuple)):
        return tuple(_spell(inner, of_node) for inner in value)
    if isinstance(value, dict):
        return tuple((name, _spell(inner, of_node)) for name, inner in sorted(value.items()))
    return type(value), repr(value)  # 1 is not True, -0.0 is not 0.0, and NaN is itself


def is_seeded(call: Node) -> bool:
    """Whether a call draws from a seed, which is named by the seeds and an index into them."""
    return call.target in SEEDED and isinstance(call.args[1], int)
