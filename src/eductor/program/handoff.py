"""What is handed over: by the partitioner the two parts of a joint graph, to an engine a job, by it a runnable graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import GraphModule

from eductor.graph.values.meta import value_of

Run = Callable[[list[Any]], Sequence[Any]]
"""Takes the inputs as a list, which it empties, so that nothing outlives its last use; returns the outputs."""

Cut = Callable[[Sequence[bool]], tuple[GraphModule, list[bool]]]
"""From which tangents are defined to the backward that takes only those, and which gradients it computes."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a saved value comes from: an input of the forward graph, or one of its outputs."""

    source: Literal["input", "output"]
    index: int


def _bytes(value: Any) -> Any:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


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
    """Whether something is computed again from parameters that eager does not save."""
    functional: Callable[[], GraphModule] | None = None
    """Gives the backward as it was before it wrote in place, where it takes several tangents: a graph that writes cannot
    be cut."""
    cut: Cut | None = None
    """Makes the backward without some tangents; whoever gives a functional one gives this."""

    def facts(self) -> dict[str, Any]:
        """How large the two graphs are, and what is kept between them."""
        facts: dict[str, Any] = {"forward_nodes": len(self.forward.graph.nodes)}
        if self.backward is None:
            return facts
        values = [value_of(p) for p in self.backward.graph.find_nodes(op="placeholder")]
        saved = zip(self.saved, values[len(self.sizes) :], strict=False)
        made = [_bytes(x) for place, x in saved if place.source == "output"]
        return {
            **facts,
            "backward_nodes": len(self.backward.graph.nodes),
            "saved_inputs": len(self.saved) - len(made),
            "saved_values": len(made),
            "saved_bytes": sum(made) if all(isinstance(size, int) for size in made) else None,
        }


@dataclass(frozen=True, slots=True)
class Job:
    """A final ATen graph to be made runnable, and what an engine may know about it."""

    module: GraphModule
    inputs: Sequence[Any]
    """Fake tensors and sizes, one for each placeholder."""
    is_inference: bool = True
    is_backward: bool = False
    static: frozenset[int] = frozenset()
    """Inputs that stay where they are in memory from call to call: parameters and buffers."""
    saved: frozenset[int] = frozenset()
    """Inputs of a backward that its forward saved."""
    written: frozenset[int] = frozenset()
    """Inputs that the graph writes back to at its end."""
    visible: frozenset[int] = frozenset()
    """Outputs whose strides somebody sees; the layout of the others is the engine's choice."""
    donated: frozenset[int] = frozenset()
    """Inputs that nobody reads afterwards: the engine may reuse their memory."""
    mode: str = "default"
    """`reduce-overhead` asks for CUDA graphs."""
    shared: dict[str, Any] = field(default_factory=dict)
    """The engine's own notes, the same for a forward and its backward."""
    tells_kernels: bool = False
    """Whether somebody wants to know which kernels are made, and of which nodes."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What an engine runs for some nodes of a graph: a kernel that it made, or a call of one that is there."""

    name: str
    language: Literal["triton", "cpp", "extern", "aten"]
    nodes: tuple[str, ...]
    code: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a record has it."""
        return {"name": self.name, "language": self.language, "nodes": list(self.nodes), "code": self.code}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A runnable graph, and what the engine knows about it."""

    run: Run
    strides: Sequence[Sequence[Any] | None] | None = None
    """The strides that it chose for the outputs; None: those of the graph."""
    counts_writes: bool | None = None
    """Whether a write-back moves the version counter of the input, as a write by ATen does; None: not known."""
    kernels: Sequence[Kernel] = ()
    """What it runs, in order, where the job asks for it."""
