"""A node read as a call, with its arguments under the names of a schema."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload, OpOverloadPacket
from eductor.graph import tensor_of
from eductor.graph.reading.schema import parameters
from eductor.patterns.language.pattern import Tolerance

aten = torch.ops.aten


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""Stands where a call has no such argument, or a parameter no default."""


@dataclass(frozen=True, eq=False, slots=True)
class CallParameters:
    """The parameters of what is called: those given by position first."""

    names: tuple[str, ...]
    positional: int
    defaults: tuple[Any, ...]

    def index(self, place: int | str) -> int:
        """Where an argument stands that a pattern gives by position or by name; -1 where there is none."""
        if isinstance(place, int):
            return place if place < self.positional else -1
        return self.names.index(place) if place in self.names else -1


@dataclass(frozen=True, slots=True)
class Inverse:
    """The inverse of a node's value, where a division is read as something else."""

    node: Node


@dataclass(frozen=True, slots=True)
class Reading:
    """A node as a call of `key`; `inverted` says that the inverse of its value is that call."""

    node: Node
    key: Any
    op: OpOverload | None
    parameters: CallParameters
    values: tuple[Any, ...]
    tolerance: Tolerance | None = None
    through: tuple[Node, ...] = ()
    """Nodes between this one and its operands that the reading passes over."""
    inverted: bool = False

    def at(self, place: int | str) -> Any:
        i = self.parameters.index(place)
        return self.values[i] if i >= 0 else MISSING

    @property
    def rank(self) -> int | None:
        """The number of dimensions that the dims of this call count."""
        if not isinstance(self.key, OpOverloadPacket) or not self.key._qualified_op_name.startswith(_COUNTING):
            return None
        sizes = next((v for v, n in zip(self.values, self.parameters.names, strict=True) if n in _SIZES), None)
        if isinstance(sizes, (list, tuple)):
            return len(sizes)
        operand = self.values[0] if self.values else None
        if isinstance(operand, (list, tuple)):
            operand = operand[0] if operand else None
        tensor = tensor_of(operand) if isinstance(operand, Node) else None
        if tensor is None:
            return None
        return tensor.dim() + (1 if self.key in _ADD_A_DIM else 0)

    @property
    def identity(self) -> Node | Inverse:
        """What a user must have as its argument to use this reading."""
        return Inverse(self.node) if self.inverted else self.node


_ADD_A_DIM = (aten.unsqueeze, aten.unsqueeze_copy, aten.stack, aten.diag_embed)
_COUNTING = ("aten::", "prims::")
"""Operators of which it is known what their dims count."""
_SIZES = ("input_sizes", "self_sizes")
"""Where a backward has the shape whose dims it counts."""


@functools.cache
def call_parameters(op: OpOverload) -> CallParameters:
    params = parameters(op)
    positional = sum(not p.keyword_only for p in params)
    return CallParameters(
        tuple(p.name for p in params), positional, tuple(p.default if p.has_default else MISSING for p in params)
    )


def made(*names: str) -> CallParameters:
    """The parameters of a call that no schema has."""
    return CallParameters(names, len(names), (MISSING,) * len(names))
