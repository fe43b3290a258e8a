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
from eductor.passes.lower.keep_draws_in_order import drops_nothing

_ALIGNMENT = 16
"""Bytes to which a generated kernel may assume that an operand is aligned, because the first one was."""


class Types:
    """The types of nodes, as hashable values."""

    def __init__(self) -> None:
        self._known: dict[Node, Hashable] = {}

    def of(self, node: Node) -> Hashable:
        """The dtype, sizes, strides and device of a node's value; None for what is no strided tensor of known sizes.

        Among several results, some may be numbers or None: kernels of attention return such.
        """
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
        types = tuple(("constant", x) if x is None or type(x) is int else _type(x) for x in value)
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
    if result is None or None in operands or not _may_be_shared(call):
        return None
    return call.target, *spelled(call, types.of), result


def _may_be_shared(call: Node) -> bool:
    """Whether a call is one of an operator without effects; attention without dropout draws nothing."""
    if not isinstance(call.target, OpOverload):
        return call.target is operator.getitem
    effect = effect_of(call)
    return (effect._replace(ordered="") if effect.random and drops_nothing(call) else effect).removable


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
