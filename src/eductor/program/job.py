"""The input and the output of an engine: a job, and a compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch.fx import GraphModule

Run = Callable[[list[Any]], Sequence[Any]]
"""Takes the inputs as a list, which it empties, so that nothing outlives its last use; returns the outputs."""


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
    """Outputs whose strides the caller can observe; the layout of the others is the engine's choice."""
    donated: frozenset[int] = frozenset()
    """Inputs that are dead afterwards: the engine may reuse their memory."""
    mode: str = "default"
    """`reduce-overhead` asks for CUDA graphs."""
    rounds: bool = False
    """Whether each operator rounds its result to its dtype, as in eager, even within a kernel that computes more precisely."""
    shared: dict[str, Any] = field(default_factory=dict)
    """The engine's own notes, the same for a forward and its backward."""
    wants_kernels: bool = False
    """Whether to report which kernels are made, and from which nodes."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What an engine runs for some nodes of a graph: a generated kernel, or a call of an existing one."""

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
