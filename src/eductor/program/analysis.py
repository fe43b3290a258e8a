"""The analysis of a captured graph: which inputs it writes, and what its outputs alias."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal


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
