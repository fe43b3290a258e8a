"""The saved values and their forms, as a plain value that the choice passes to the passes before the split, and to the split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from eductor.partition.compressed_saves import Form
from eductor.partition.node_info import NodeInfo


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
        info: NodeInfo, saved: Sequence[Node], ahead: Iterable[Node] = (), forms: Mapping[Node, Form] | None = None
    ) -> Saves:
        known = forms or {}
        return Saves(
            info,
            {node.name: known[node].name if node in known else "" for node in saved},
            tuple(node.name for node in ahead),
            frozenset(node.name for node in info.copied.intersection(saved)),
            not (info.parameters & {*saved}) <= info.guarded,
        )
