"""The output of a partitioner, forward and backward graph; and the program, ready to be compiled and linked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import GraphModule

from eductor.graph.no import No
from eductor.graph.values.meta import value_of
from eductor.program.joint import Signature


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a saved value comes from: an input of the forward graph, or one of its outputs."""

    source: Literal["input", "output"]
    index: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The forward graph `primals -> (returns, saved)`, the backward `(sizes, saved, destinations, tangents) -> gradients`."""

    forward: GraphModule
    backward: GraphModule | None
    sizes: tuple[Saved, ...] = ()
    saved: tuple[Saved, ...] = ()
    destinations: tuple[int, ...] = ()
    """Inputs of the forward that the backward writes to."""
    trusts_parameters: bool = False
    """Whether the backward recomputes something from parameters that eager does not save."""
    functional: Callable[[], GraphModule] | None = None
    """Gives the backward before its post-grad passes, where it takes several tangents: undefined ones can be pruned only
    from a functional graph."""

    def facts(self) -> dict[str, Any]:
        """The sizes of the two graphs, and the bytes saved between them."""
        facts: dict[str, Any] = {"forward_nodes": len(self.forward.graph.nodes)}
        if self.backward is None:
            return facts
        values = [value_of(p) for p in self.backward.graph.find_nodes(op="placeholder")]
        saved = zip(self.saved, values[len(self.sizes) :], strict=False)
        made = [bytes_of(x) for place, x in saved if place.source == "output"]
        return {
            **facts,
            "backward_nodes": len(self.backward.graph.nodes),
            "saved_inputs": len(self.saved) - len(made),
            "saved_values": len(made),
            "saved_bytes": sum(made) if all(isinstance(size, int) for size in made) else None,
        }


def bytes_of(value: Any) -> Any:
    """The memory of a tensor's elements; 0 for a number."""
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


@dataclass(frozen=True, slots=True)
class ReplayNeeds:
    """What a later run of the captured graph in eager needs of a call, as read off the joint graph before its passes."""

    is_random: bool
    watched: tuple[int, ...]
    """Inputs that must not be written until then."""
    let_go: tuple[int, ...]
    """Inputs of which only shape, strides and dtype are needed."""
    refusal: No | None
    """Why a replay would compute something else; None where it may run."""


@dataclass(frozen=True, slots=True)
class Program:
    """The final graphs, and what the function around them must know."""

    signature: Signature
    parts: Parts
    replay: ReplayNeeds | None
    """None where the captured graph is never replayed."""
    function_graph: GraphModule | None = None
    """The joint graph as it was traced, where gradients of a user's autograd.Function may be differentiated again."""
