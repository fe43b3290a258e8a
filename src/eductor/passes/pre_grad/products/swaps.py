"""Recognizes exchanges of the last two dims, by any operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, bind, tensor_of

aten = torch.ops.aten

SWAPS = (aten.permute, aten.transpose, aten.t, aten.mT, aten.numpy_T, aten.movedim)
"""The operators that may exchange the last two dims."""


def swapped(node: Any) -> Node | None:
    """The value of which a node is a view with the last two dims exchanged; None for any other node."""
    if not isinstance(node, Node):
        return None
    bound, tensor = bind(node), tensor_of(node)
    if not isinstance(bound, Bound) or tensor is None or bound.packet not in SWAPS:
        return None
    if tensor.dim() < 2 or len(node.all_input_nodes) != 1:
        return None
    sizes = list(range(2, 2 + tensor.dim()))
    # In a shape without equal sizes, the result shows which dims moved.
    probe = Bound(bound.op, {**bound.arguments, "self": torch.empty(sizes, device="meta")}, bound.given)
    args, kwargs = probe.call()
    is_swap = list(bound.op(*args, **kwargs).shape) == [*sizes[:-2], sizes[-1], sizes[-2]]
    return node.all_input_nodes[0] if is_swap else None
