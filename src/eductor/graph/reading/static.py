"""Values that stay the same from call to call: parameters and buffers, and what is computed from them alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node

from eductor.graph.values.meta import UNKNOWN, value_of
from eductor.graph.values.module_tensors import attribute_at, has_attribute

PACKED = "eductor_packed"
"""The key under which a node says that its value may be computed once and kept."""


def is_static(node: Node) -> bool:
    """Whether a node is a parameter, a buffer or a constant: an input that Dynamo calls static, or one the module holds."""
    if node.op == "placeholder":
        return bool((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"))
    if node.op != "get_attr":
        return False
    value, owner = value_of(node), node.graph.owning_module
    if value is UNKNOWN and owner is not None and has_attribute(owner, str(node.target)):
        value = attribute_at(owner, str(node.target))
    return isinstance(value, torch.Tensor)


def mark_static(node: Node) -> None:
    """Makes an input one that stays the same from call to call."""
    node.meta["tensor_dict"] = {"_dynamo_static_input_type": "unguarded"}


def pack(node: Node, *, uncounted: Iterable[Node] = ()) -> None:
    """Marks a value that is computed from static values alone: in inference it is computed once and kept.

    Only where `context.packs`: elsewhere the mark is of no use. Torch counts the writes to a tensor, which tells whether
    what was kept still holds. Static values that are written `uncounted` (the statistics of a batch norm) are compared
    before each call, so they should be small and in the memory of the CPU.
    """
    node.meta[PACKED] = tuple(uncounted)


def is_packed(node: Node) -> bool:
    """Whether a node is marked as one whose value is computed once and kept."""
    return PACKED in node.meta


def uncounted_of(node: Node) -> tuple[Node, ...]:
    """The static values behind a packed one whose writes torch does not count."""
    found: tuple[Node, ...] = node.meta[PACKED]
    return found
