"""The saved values with the form that each is saved in: flags as bits, indices in few bytes, or as it is.

A plain value that the choice passes to the pass that adds what packs and unpacks them, and to the split.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from eductor.cost import Device
from eductor.graph import Bound, bind, tensor_of
from eductor.partition.node_info import NodeInfo

LEAST = 1 << 16
"""Elements of a value that is worth the kernels."""


@dataclass(frozen=True, slots=True)
class SavedForm:
    """How a value is saved: as `bits`, or in a smaller dtype, by its name."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Saves:
    """What is saved, and what the backward computes at its start, by the names of nodes."""

    info: NodeInfo
    """The nodes of the joint graph as the choice was made."""
    forms: Mapping[str, str]
    """The saved values, each with the form that it is saved in; empty for as it is."""
    ahead: tuple[str, ...]
    copied: frozenset[str]
    """What is saved as a copy."""
    trusts_parameters: bool
    """Whether something is computed again from parameters that eager does not save."""

    @staticmethod
    def of(
        info: NodeInfo, saved: Sequence[Node], ahead: Iterable[Node] = (), forms: Mapping[Node, SavedForm] | None = None
    ) -> Saves:
        known = forms or {}
        return Saves(
            info,
            {node.name: known[node].name if node in known else "" for node in saved},
            tuple(node.name for node in ahead),
            frozenset(node.name for node in info.copied.intersection(saved)),
            not (info.parameters & {*saved}) <= info.guarded,
        )


def forms_of(info: NodeInfo, nodes: Iterable[Node], device: Device) -> dict[Node, SavedForm]:
    """The small forms of values, as far as they have one; what the caller sees is saved as it is."""
    found = ((node, form_of(node, device)) for node in nodes if node not in info.exposed)
    return {node: form for node, form in found if form is not None}


def form_of(node: Node, device: Device) -> SavedForm | None:
    """The small form in which a value is saved on a device; None for the value as it is."""
    value = tensor_of(node)
    if value is None or value.dtype not in (torch.bool, torch.int64) or node.op != "call_function":
        return None
    if not device.fuses or not _is_plain(value):
        return None
    if value.dtype == torch.bool and device.packs_bits and value.numel() % 8 == 0:
        return SavedForm("bits", value.numel() // 8)
    largest = _largest_index(node) if value.dtype == torch.int64 else None
    small = next((d for d in _INDICES if largest is not None and largest <= torch.iinfo(d).max), None)
    if small is None:
        return None
    return SavedForm(str(small).removeprefix("torch."), value.numel() * small.itemsize)


def _is_plain(value: torch.Tensor) -> bool:
    """Whether a value has a known size, that is large enough, and is contiguous."""
    sizes = (*value.shape, *value.stride())
    return all(isinstance(n, int) for n in sizes) and value.is_contiguous() and value.numel() >= LEAST


_INDICES = (torch.uint8, torch.int16, torch.int32)
_PICKS = frozenset({"max", "min", "sort", "topk", "kthvalue", "mode", "median", "nanmedian", "cummax", "cummin"})
"""Operators whose second result is, for each of the first one, its index in a dimension."""
_SEARCHES = frozenset({"argmax", "argmin", "argsort"})


def _largest_index(node: Node) -> int | None:
    """The largest index that a node can give, if its result is indices into a dimension of known size."""
    is_second = node.target is operator.getitem and node.args[1] == 1
    call = node.args[0] if is_second else node
    bound = bind(call) if isinstance(call, Node) and call.op == "call_function" else None
    if not isinstance(bound, Bound):
        return None
    name = bound.packet.__name__
    given = tensor_of(bound["self"]) if name in (_PICKS if is_second else _SEARCHES) else None
    if given is None or not all(isinstance(n, int) for n in given.shape):
        return None
    dim = bound.get("dim")
    return (given.numel() if dim is None else given.shape[dim] if given.dim() else 1) - 1
