"""The input and the output of an engine: a job, and a compiled graph; the jobs of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node

from eductor.graph.effects.bases import base_node
from eductor.graph.values.meta import known_equal, output_of, value_of
from eductor.program.parts import Program

Run = Callable[[list[Any]], Sequence[Any]]
"""Takes the inputs as a list, which it empties, so that nothing outlives its last use; returns the outputs."""

Strides = Sequence[Sequence[Any] | None]
"""The strides that an engine chose for the outputs of a graph; None for an output that keeps those of the graph."""


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
    undefined: tuple[int, ...] = ()
    """Tangents that a backward lacks, as the loss does not use the outputs whose gradients they are."""
    written: frozenset[int] = frozenset()
    """Inputs that the graph writes back to at its end."""
    visible: frozenset[int] = frozenset()
    """Outputs whose strides the caller can observe; the layout of the others is the engine's choice."""
    donated: frozenset[int] = frozenset()
    """Inputs that are dead afterwards: the engine may reuse their memory."""
    mode: str = "default"
    """What the engine optimizes for."""
    rounds: bool = False
    """Whether each operator rounds its result to its dtype, as in eager, even within a kernel that computes more precisely."""
    shared: dict[str, Any] = field(default_factory=dict)
    """The engine's own notes, the same for a forward and its backward."""
    wants_kernels: bool = False
    """Whether to report which kernels are made, and from which nodes."""
    defers: bool = False
    """Whether the engine may return while kernels are being built: see `Compiled.wait`."""

    @property
    def role(self) -> Literal["forward", "backward"]:
        return "backward" if self.is_backward else "forward"


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
    strides: Strides | None = None
    """The strides that it chose for the outputs; None: those of the graph."""
    counts_writes: bool | None = None
    """Whether a write-back moves the version counter of the input, as a write by ATen does; None: not known."""
    kernels: Sequence[Kernel] = ()
    """What it runs, in order, where the job asks for it."""
    wait: Callable[[], Compiled | None] | None = None
    """Waits for kernels that are still being built; returns what runs instead if they cannot be. None: there are none."""

    def built(self) -> Compiled:
        """What runs, when its kernels are there."""
        return self if self.wait is None else self.wait() or self


def forward_job(program: Program) -> Job:
    """The forward graph of a program."""
    signature, module = program.signature, program.parts.forward
    return Job(
        module,
        _values(module),
        is_inference=not signature.tangents,
        static=signature.static,
        written=frozenset(signature.writes.forward),
        visible=frozenset(range(len(signature.analysis.returns))),
    )


def backward_job(
    program: Program,
    strides: Strides | None,
    module: GraphModule,
    defined: Sequence[bool],
    *,
    keeps_saved: bool,
    shared: dict[str, Any],
) -> Job:
    """A backward graph of a program, which takes the defined tangents; `strides` are those of the compiled forward."""
    parts = program.parts
    sizes, saved = len(parts.sizes), len(parts.sizes) + len(parts.saved)
    destinations = frozenset(range(saved, saved + len(parts.destinations)))
    return Job(
        module,
        [*_saved_values(program, strides), *_values(module)[saved:]],
        is_inference=False,
        is_backward=True,
        static=_static(program) | destinations,
        saved=frozenset(range(sizes, saved)),
        undefined=tuple(i for i, is_defined in enumerate(defined) if not is_defined),
        written=destinations,
        visible=frozenset(range(len(output_of(module)))),
        donated=frozenset() if keeps_saved else _unshared(program),
        shared=shared,
    )


def _values(module: GraphModule) -> list[Any]:
    return [value_of(p) for p in module.graph.find_nodes(op="placeholder")]


def _saved_values(program: Program, chosen: Strides | None) -> list[Any]:
    """Fake values of saved sizes and tensors, with the strides that the engine chose for them."""
    parts = program.parts
    assert parts.backward is not None
    values = _values(parts.backward)[: len(parts.sizes) + len(parts.saved)]
    for k, place in enumerate(parts.saved, start=len(parts.sizes)):
        strides = chosen[place.index] if chosen is not None and place.source == "output" else None
        value = values[k]
        if strides is not None and not known_equal(tuple(value.stride()), tuple(strides)):
            with value.fake_mode:
                values[k] = torch.empty_strided(value.shape, tuple(strides), dtype=value.dtype, device=value.device)
    return values


def _unshared(program: Program) -> frozenset[int]:
    """Inputs of the backward that share no memory with anything the caller has."""
    parts = program.parts
    outputs, count = output_of(parts.forward), len(program.signature.analysis.returns)
    returned = {base_node(n) for n in outputs[:count] if isinstance(n, Node)}
    return frozenset(
        len(parts.sizes) + k
        for k, place in enumerate(parts.saved)
        if place.source == "output"
        and place.index >= count
        and base_node(outputs[place.index]) not in returned
        and base_node(outputs[place.index]).op != "placeholder"
    )


def _static(program: Program) -> frozenset[int]:
    """Inputs of the backward that are parameters or buffers."""
    places = enumerate(program.parts.saved, start=len(program.parts.sizes))
    return frozenset(k for k, place in places if place.source == "input" and place.index in program.signature.static)
