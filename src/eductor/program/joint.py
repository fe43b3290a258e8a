"""A joint graph, and its signature: what goes in, what comes out, and what must be restored around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.program.analysis import Analysis

Place = tuple[str, int]
"""("input", i) or ("return", i)."""


@dataclass(frozen=True, slots=True)
class Views:
    """Makes the outputs that are views from the values at `places`, which are inputs and returns."""

    places: tuple[Place, ...]
    module: GraphModule

    def __call__(self, inputs: Sequence[Any], returns: Sequence[Any]) -> Sequence[torch.Tensor]:
        made: Sequence[torch.Tensor] = self.module.forward(
            *(inputs[i] if kind == "input" else returns[i] for kind, i in self.places)
        )
        return made


@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient of a return as the backward takes it: with these strides, or in this memory format."""

    of: int
    strides: tuple[int, ...] | None
    memory_format: torch.memory_format


@dataclass(frozen=True, slots=True)
class Writes:
    """Inputs that are written back to inside of the graphs, by the forward and by the backward."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """What goes into a joint graph, what comes out, and what must be restored around it."""

    analysis: Analysis
    tangents: tuple[Tangent, ...]
    gradients: tuple[int, ...]
    """The input of each gradient among the outputs; the other inputs get none.

    With `exact`, an input that is used several times has several: autograd adds them to what it has from elsewhere.
    """
    writes: Writes
    views: tuple[Views | None, Views | None]
    """Makes the outputs that are views again: those made in grad mode, and the others."""
    static: frozenset[int]
    """Inputs whose memory address does not change: parameters and buffers."""

    @property
    def written(self) -> frozenset[int]:
        """Inputs that are written at all."""
        seen = (i for i, given in enumerate(self.analysis.inputs) if given.seen_write or given.flows)
        return frozenset((*self.writes.forward, *self.writes.backward, *seen))

    @property
    def overwritten(self) -> frozenset[int]:
        """Inputs whose old value the forward overwrites."""
        return frozenset((*self.writes.forward, *self.analysis.copied))


@dataclass(frozen=True, slots=True)
class Joint(Signature):
    """A joint graph: `(primals, tangents) -> (returns, gradients)`, with write-backs of inputs at its end."""

    module: GraphModule
    parameters: frozenset[int]

    @property
    def primals(self) -> list[Node]:
        return self.module.graph.find_nodes(op="placeholder")[: len(self.analysis.inputs)]

    @property
    def signature(self) -> Signature:
        """The signature, without the graph that passes edit."""
        return Signature(self.analysis, self.tangents, self.gradients, self.writes, self.views, self.static)
