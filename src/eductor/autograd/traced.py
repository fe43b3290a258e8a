"""Ahead-of-time autograd: its first step, from a captured graph to a joint graph; and all of it as one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.fx import GraphModule

from eductor.autograd.captured import Captured, Fakes
from eductor.autograd.eager_replay import has_function, pure_copy, replay_needs
from eductor.autograd.input_overlaps import Merged, overlapping
from eductor.autograd.link import Compile, compile_job, deferred_backward, link
from eductor.autograd.tracing import aot_dispatch_autograd_graph
from eductor.compat import without_autocast
from eductor.program.job import forward_job
from eductor.program.joint import Joint
from eductor.program.parts import Parts, Program, ReplayNeeds


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
        captured = merged = Merged(captured, given, pairs, joint.signature)
        joint = _trace(merged, merged.flatten(given), options)
        merged.refuse_views(joint.signature)
    replay = replay_needs(joint, redraws=options.redraws) if options.double_backward and joint.tangents else None
    function_graph = pure_copy(joint.module) if replay is not None and has_function(module) else None
    return Traced(captured, joint, replay, function_graph)


def _trace(captured: Captured, flat: Sequence[Any], options: TraceOptions) -> Joint:
    fakes = Fakes.of(flat, captured.sources())
    table = options.decompositions
    return aot_dispatch_autograd_graph(captured, fakes, table, redraws=options.redraws, exact=options.exact)


def aot_dispatch_autograd(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    partition_fn: Callable[[Joint], Parts],
    compile: Compile,
    decompositions: Mapping[Any, Any] | None = None,
    double_backward: bool = True,
    exact: bool = False,
    redraws: bool = False,
) -> Callable[..., Any]:
    """A function like the captured graph, made of compiled forward and backward graphs.

    `partition_fn` splits the joint graph, `compile` makes a graph runnable; both may edit the graphs they are given.
    `exact` and `redraws` are those of `TraceOptions`.
    """
    options = TraceOptions(decompositions or {}, double_backward, exact, redraws)
    traced = trace_joint(module, inputs, options)
    with without_autocast():  # its casts are in the graph
        program = traced.program(partition_fn(traced.joint))
    job = forward_job(program)
    forward = compile_job(compile, job).built()
    backward = deferred_backward(program, forward, compile, None, job.shared)
    recompile = partial(
        aot_dispatch_autograd,
        partition_fn=partition_fn,
        compile=compile,
        decompositions=decompositions,
        double_backward=double_backward,
        exact=exact,
        redraws=redraws,
    )
    return link(traced.captured, inputs, program, forward, backward, recompile=recompile, exact=exact)
