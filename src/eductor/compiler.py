"""From a captured graph to a function, stage by stage: read this from top to bottom.

    capture     Dynamo (torch's own)                             -> Torch-level graph
    pre_grad    passes on the captured graph, before autograd
    autograd    trace forward and backward, functionalize        -> joint ATen graph
    joint       passes on forward and backward together
    partition   what to save for the backward                    -> forward and backward graph
    post_grad   passes on each graph alone
    engine      makes each graph runnable

A graph that ahead-of-time autograd cannot take runs as it was captured, with a warning that names the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch.fx import GraphModule

from eductor.autograd import Joint, Parts, aot_dispatch_autograd
from eductor.engines import ATEN, INDUCTOR, Compiled, Engine, Job, find_engine, has_code_generator
from eductor.engines.legalize.numbers import without_numbers
from eductor.errors import BadOption, EductorError, EductorWarning, Unsupported
from eductor.options import Options
from eductor.partition import partition_fn
from eductor.pipeline.base import Context, Stage
from eductor.pipeline.pipeline import Pipeline
from eductor.pipeline.runner import skip_steps

F = TypeVar("F", bound=Callable[..., Any])


def compile(model: F, *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any) -> F:
    """`torch.compile(model, backend="eductor")` with options as keywords, checked at once."""
    checked = Options.of(options)
    Pipeline.of(checked)
    choose_engine(checked)

    def eductor(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(module, inputs, checked)

    compiled: Any = torch.compile(model, backend=eductor, fullgraph=fullgraph, dynamic=dynamic)
    return cast(F, compiled)


def backend(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What Dynamo calls with each graph it captured; registered as the backend `eductor`."""
    chosen = Options.of(options)
    return compile_graph(module, inputs, chosen if mode is None else replace(chosen, mode=mode))


def compile_graph(module: GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """Takes one captured graph through all stages."""
    flow = Flow.start(module, options)
    pre_grad(flow, inputs)
    try:
        return autograd(flow, inputs)
    except Exception as error:
        if isinstance(error, EductorError) and not isinstance(error, Unsupported):
            raise
        return as_captured(flow, inputs, error)


@dataclass(frozen=True)
class Flow:
    """What all stages know. It lives as long as the compiled function, so it holds no inputs."""

    module: GraphModule
    options: Options
    pipeline: Pipeline
    engine: Engine

    @staticmethod
    def start(module: GraphModule, options: Options) -> Flow:
        engine = choose_engine(options)
        if not engine.seeded_random:
            options = replace(options, fallback_random=True)
        return Flow(module, options, Pipeline.of(options), engine)

    def run_passes(self, stage: Stage, module: GraphModule, *, is_inference: bool) -> None:
        self.pipeline.run(stage, module, Context(stage, self.options, is_inference), self.options.instruments)

    def skip_passes(self, stage: Stage, reason: str) -> None:
        context = Context(stage, self.options, is_inference=False)
        skip_steps(self.pipeline.stage(stage), stage, self.module, context, self.options.instruments, reason)


def pre_grad(flow: Flow, inputs: Sequence[Any]) -> None:
    """Passes on the captured graph."""
    differentiable = any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    flow.run_passes("pre_grad", flow.module, is_inference=not (torch.is_grad_enabled() and differentiable))


def autograd(flow: Flow, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Traces forward and backward together, and wraps what the stages below make of them."""
    given = flow.options.decompositions
    return aot_dispatch_autograd(
        flow.module,
        inputs,
        decompositions=flow.engine.decompositions(flow.options) if given is None else given,
        partition_fn=partial(partition, flow),
        compile=partial(engine, flow),
        double_backward=flow.options.double_backward,
        exact=flow.options.profile == "exact",
        draws_anew=not flow.options.fallback_random and flow.options.profile != "exact",
    )


def partition(flow: Flow, graph: Joint) -> Parts:
    """From a joint graph to a forward and a backward graph, with the passes before and after."""
    if not flow.engine.takes_numbers:
        without_numbers(graph.module)
    joint(flow, graph)
    parts = partition_fn(graph)
    post_grad(flow, parts)
    return parts


def joint(flow: Flow, graph: Joint) -> None:
    """Passes on forward and backward together."""
    flow.run_passes("joint", graph.module, is_inference=not graph.tangents)


def post_grad(flow: Flow, parts: Parts) -> None:
    """Passes on each graph alone."""
    flow.run_passes("post_grad", parts.forward, is_inference=parts.backward is None)
    if parts.backward is not None:
        flow.run_passes("post_grad", parts.backward, is_inference=False)


def engine(flow: Flow, job: Job) -> Compiled:
    """Makes a graph runnable; where the engine cannot, the graph runs as it is, and a warning says so."""
    try:
        return flow.engine(replace(job, mode=flow.options.mode))
    except Exception as error:
        if flow.options.strict:
            raise EductorError(f"the engine {flow.engine.name!r} failed: {error!r}") from error
        _warn(f"the engine {flow.engine.name!r} failed, so the graph runs with the engine 'aten': {error!r}")
        return ATEN(job)


def as_captured(flow: Flow, inputs: Sequence[Any], error: Exception) -> Callable[..., Any]:
    """The captured graph as it is, differentiated by eager's autograd: for what ahead-of-time autograd cannot take."""
    construct = str(error) if isinstance(error, Unsupported) else f"this graph ({type(error).__name__}: {error})"
    message = f"ahead-of-time autograd does not support {construct}"
    if flow.options.strict:
        raise EductorError(f"{message}.") from error
    _warn(f"{message}; the captured graph runs uncompiled, as in eager.")
    for stage in ("joint", "post_grad"):
        flow.skip_passes(stage, message)
    run = ATEN(Job(flow.module, inputs)).run
    return lambda *args: run(list(args))


def _warn(message: str) -> None:
    warnings.warn(message, EductorWarning, stacklevel=3)


def choose_engine(options: Options) -> Engine:
    """The engine that the options ask for, or the best one that is here."""
    chosen = options.engine
    if chosen is None:
        chosen = "inductor" if options.profile == "fast" and has_code_generator() else "aten"
    found = find_engine(chosen)
    if options.mode not in found.modes:
        raise BadOption(f"mode={options.mode!r}: the engine {found.name!r} has {', '.join(found.modes)}.")
    if options.profile == "exact" and found is INDUCTOR:
        raise BadOption(
            "option engine='inductor' with profile='exact': its kernels round differently from eager's. "
            "Use the engine 'aten', or the profile 'fast'."
        )
    return found
