"""Unary pointwise calls, and the same calls on another tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph.reading.bind import Bound
from eductor.graph.text.compare import same_value
from eductor.graph.values.meta import tensor_of


def operand_of(bound: Bound) -> Node | None:
    """The operand of a pure unary pointwise call; None for any other call."""
    op, operands = bound.op, [x for x in bound.arguments.values() if isinstance(x, Node)]
    is_pure = not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags
    if torch.Tag.pointwise not in op.tags or not is_pure or "memory_format" in bound.arguments:
        return None
    return operands[0] if len(operands) == 1 and tensor_of(operands[0]) is not None else None


def on(bound: Bound, operand: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of such a call on another tensor."""
    arguments = {name: operand if isinstance(x, Node) else x for name, x in bound.arguments.items()}
    return Bound(bound.op, arguments, bound.given).call()


def is_same_function(a: Bound, b: Bound) -> bool:
    """Whether two such calls compute the same function."""
    if a.op is not b.op:
        return False
    pairs = ((a[name], b[name]) for name in a.arguments)
    return all((isinstance(x, Node) and isinstance(y, Node)) or same_value(x, y) for x, y in pairs)
