"""Static values: parameters, buffers and constants, and the packed values computed from them alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import GraphModule, Node

from eductor.graph.snapshot import attribute_or_none
from eductor.graph.values.meta import UNKNOWN, value_of

PACKED = "eductor_packed"
"""The key that marks a node whose value may be computed once and cached."""


def is_static(node: Node) -> bool:
    """Whether a node is a parameter, buffer or constant: an input that Dynamo marks static, or a tensor of the module."""
    if node.op == "placeholder":
        return bool((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"))
    if node.op != "get_attr":
        return False
    value, owner = value_of(node), node.graph.owning_module
    if value is UNKNOWN:
        value = attribute_or_none(owner, str(node.target))
    return isinstance(value, torch.Tensor)


def mark_parameters(module: GraphModule) -> None:
    """For examples: all inputs but the first are parameters of a model."""
    for node in module.graph.find_nodes(op="placeholder")[1:]:
        mark_static(node)


def mark_static(node: Node) -> None:
    """Marks an input as static: the same tensor in every call."""
    node.meta["tensor_dict"] = {"_dynamo_static_input_type": "unguarded"}


def pack(node: Node, *, uncounted: Iterable[Node] = ()) -> None:
    """Marks a value computed from static values alone: in inference it is computed once and cached.

    Only where `context.packs`: elsewhere the mark has no effect. Torch counts the writes to a tensor, which shows whether
    the cached value is valid. Static values whose writes are `uncounted` (the statistics of a batch norm) are compared
    before each call, so they should be small and in CPU memory.
    """
    node.meta[PACKED] = tuple(uncounted)


def is_packed(node: Node) -> bool:
    """Whether a node is marked as computed once and cached."""
    return PACKED in node.meta


def uncounted_of(node: Node) -> tuple[Node, ...]:
    """The static values that a packed value depends on and whose writes torch does not count."""
    found: tuple[Node, ...] = node.meta[PACKED]
    return found
