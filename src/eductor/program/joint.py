"""A joint graph, its signature, and the analysis behind it: what is written, what outputs alias, what must be restored."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node

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


@dataclass(frozen=True, slots=True)
class Input:
    """What happens to one input."""

    requires_grad: bool
    seen_write: bool
    """Its version counter moves: autograd notices the write."""
    flows: bool
    """It is written with gradients recorded: its new value depends differentiably on other inputs, or on its old one."""


@dataclass(frozen=True, slots=True)
class Return:
    """A value that the forward graph returns: the new value of input i, output i, or what output i is a view of."""

    source: Literal["input", "output", "base"]
    index: int
    requires_grad: bool

    def pick(self, flat: Sequence[Any], outputs: Sequence[Any]) -> Any:
        if self.source == "input":
            return flat[self.index]
        value = outputs[self.index]
        return value._base if self.source == "base" else value


@dataclass(frozen=True, slots=True)
class Output:
    """What the caller gets: a number, the input i, the output i again, return i, or a view that is made again."""

    kind: Literal["number", "input", "output", "return", "view"]
    index: int = -1
    recorded: bool = True
    """Whether it was made in grad mode; a view knows, and does not let itself be written in the other mode."""
    requires_grad: bool = False
    root: Literal["input", "return"] = "return"
    """What a view is of; `index` is its number."""
    value: Any = None
    """The number, where it is one."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that must be restored around a functional graph."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    returns: tuple[Return, ...]
    values: tuple[Any, ...]
    """A fake value for each return."""
    grad_mode: bool | None
    """The grad mode that the graph leaves behind, where it changes it."""
    makes_inference_tensors: bool

    def noticing(self, written: Collection[int]) -> Analysis:
        """The same, where these inputs are written too, as autograd sees."""
        if not written:
            return self
        given = (replace(x, seen_write=x.seen_write or i in written) for i, x in enumerate(self.inputs))
        return replace(self, inputs=tuple(given))

    @property
    def copied(self) -> tuple[int, ...]:
        """Inputs that the graph takes as copies: autograd must see the write, so it happens outside of the graph."""
        return tuple(i for i, given in enumerate(self.inputs) if given.flows)
