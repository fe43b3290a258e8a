"""Ahead-of-time autograd as one function of a captured graph, a partitioner and a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch.fx import GraphModule

from eductor.autograd.link import Compile, compile_job, deferred_backward, link
from eductor.autograd.traced import TraceOptions, trace_joint
from eductor.compat import without_autocast
from eductor.program.jobs import forward_job
from eductor.program.joint import Joint
from eductor.program.parts import Parts


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
    forward = compile_job(compile, job)
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
