"""Assertions on tensor metadata, and whether they are statically known to hold."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph.no import No
from eductor.graph.reading.bind import Bound, bind
from eductor.graph.values.meta import known_equal, tensor_of, value_of

_FACTS: dict[str, Any] = {
    "size": lambda tensor: tuple(tensor.shape),
    "stride": lambda tensor: tuple(tensor.stride()),
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "layout": lambda tensor: tensor.layout,
}


def holds_for_certain(node: Node) -> Literal[True] | No:
    """Whether a node is an assertion on metadata that is known to hold, so that it is redundant."""
    bound = bind(node)
    if not isinstance(bound, Bound) or bound.packet is not torch.ops.aten._assert_tensor_metadata:
        return No(f"{node.name} is not a check of metadata", node)
    unknown = next((name for name in _FACTS if not _holds(bound, name)), "")
    return No(f"its {unknown} is not known to be {bound[unknown]}") if unknown else True


def _holds(bound: Bound, name: str) -> bool:
    wanted, tensor = bound[name], tensor_of(bound["a"])
    if wanted is None or tensor is None:
        return wanted is None
    found = _FACTS[name](tensor)
    if isinstance(found, tuple):
        return known_equal(found, tuple(map(value_of, wanted)))
    return bool(found == (torch.device(wanted) if name == "device" else wanted))
