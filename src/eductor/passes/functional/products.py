"""Matrix products: their factors, what can take part in one, and whether what follows fuses into its readers."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.cost import fuses, reduces
from eductor.graph import GraphView, No, known_equal, tensor_of, value_of

aten = torch.ops.aten

FACTORS: dict[Any, tuple[str, str]] = {
    aten.mm: ("self", "mat2"),
    aten.bmm: ("self", "mat2"),
    aten.addmm: ("mat1", "mat2"),
}
"""The arguments of a product that are its factors."""


def fuses_into_users(graph: GraphView, node: Node) -> bool:
    """Whether all that reads a value, through views, computes it element by element in a kernel of its own."""
    pending, seen = list(node.users), set[Node]()
    while pending:
        user = pending.pop()
        if user in seen:
            continue
        seen.add(user)
        if user.op == "call_function" and graph.effects.of(user).is_view:
            pending += user.users
        elif user.op != "call_function" or not (fuses(user) or reduces(user)):
            return False
    return bool(seen)


def is_expandable(operand: Any, to: torch.Tensor) -> bool:
    """Whether a tensor is known to be broadcast to the shape of another one, which it does not enlarge."""
    value = tensor_of(operand)
    if value is None or value.dim() > to.dim():
        return False
    sizes = zip(reversed(value.shape), reversed(to.shape), strict=False)
    return all(known_equal(own, 1) or known_equal(own, wanted) for own, wanted in sizes)


def are_alike(node: Node, *operands: Any) -> Literal[True] | No:
    """Whether operands can take part in one product: they have the dtype and the device of its result."""
    result = value_of(node)
    for x in operands:
        value = tensor_of(x)
        if value is None:
            return No("an operand is not known to be a tensor")
        if value.dtype != result.dtype:
            return No(f"an operand is of {value.dtype}, the result of {result.dtype}")
        if value.device != result.device:
            return No(f"an operand is on {value.device}, the result on {result.device}")
    return True
