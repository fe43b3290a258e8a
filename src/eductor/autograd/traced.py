"""The first step of ahead-of-time autograd: from a captured graph and its inputs to a joint graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule

from eductor.autograd.captured import Captured, Fakes
from eductor.autograd.eager_replay import has_function, pure_copy, replay_needs
from eductor.autograd.input_overlaps import Merged, overlapping
from eductor.autograd.tracing import aot_dispatch_autograd_graph
from eductor.program.joint import Joint
from eductor.program.parts import Parts
from eductor.program.program import Program, ReplayNeeds


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a joint graph is traced."""

    decompositions: Mapping[Any, Any] = field(default_factory=dict)
    double_backward: bool = True
    """Whether gradients of gradients are supported, by replaying the captured graph in eager."""
    exact: bool = False
    """Whether the graph computes what eager's kernels compute, bit by bit; a backward under autocast casts as eager's."""
    redraws: bool = False
    """Whether the compiled graphs draw other random numbers than eager."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A captured graph with its joint graph, before any pass edits that."""

    captured: Captured
    joint: Joint
    replay: ReplayNeeds | None
    function_graph: GraphModule | None

    def program(self, parts: Parts) -> Program:
        """With what a partitioner and the passes after it made of the joint graph."""
        return Program(self.joint.signature, parts, self.replay, self.function_graph)


def trace_joint(module: GraphModule, inputs: Sequence[Any], options: TraceOptions) -> Traced:
    """Traces forward and backward together. Inputs that overlap in memory, and are written, are traced as one input."""
    captured = Captured(module)
    given = [*captured.held, *inputs]
    joint = _trace(captured, given, options)
    pairs = overlapping(given, joint.written) if joint.written else frozenset()
    if pairs:
        captured = Merged(captured, given, pairs, joint.signature)
        joint = _trace(captured, captured.flatten(given), options)
    replay = replay_needs(joint, redraws=options.redraws) if options.double_backward and joint.tangents else None
    function_graph = pure_copy(joint.module) if replay is not None and has_function(module) else None
    return Traced(captured, joint, replay, function_graph)


def _trace(captured: Captured, flat: Sequence[Any], options: TraceOptions) -> Joint:
    fakes = Fakes.of(flat, captured.sources())
    table = options.decompositions
    return aot_dispatch_autograd_graph(captured, fakes, table, redraws=options.redraws, exact=options.exact)
