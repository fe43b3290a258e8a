"""From a captured graph to a function, stage by stage: read this from top to bottom.

    capture     Dynamo (torch's own)                             -> Torch-level graph
    pre_grad    passes on the captured graph, before autograd
    autograd    functionalize, trace forward and backward        -> joint ATen graph       (not here yet)
    joint       passes on forward and backward together          (run by `joint_graph_passes` until then)
    partition   what to save, what to recompute                  -> forward and backward   (not here yet)
    post_grad   passes on each graph alone                       (run by `post_grad_passes` until then)
    engine      makes the final graph runnable

Until autograd is here, the captured graph goes through the pre-grad stage to the engine, and torch's eager autograd
differentiates it; what it computes is what the model computes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch.fx import GraphModule

from eductor.engines import Compiled, Job, find_engine
from eductor.errors import BadOption, EductorError, EductorWarning
from eductor.options import Options
from eductor.pipeline.base import Context, Stage
from eductor.pipeline.pipeline import Pipeline
from eductor.pipeline.runner import skip_steps

F = TypeVar("F", bound=Callable[..., Any])


def compile(model: F, *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any) -> F:
    """`torch.compile(model, backend="eductor")` with options as keywords, checked at once."""
    checked = Options.of(options)
    Pipeline.of(checked)
    find_engine(checked.engine)

    def eductor(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _unboxed(compile_graph(module, inputs, checked))

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
    if mode not in (None, "default"):
        raise BadOption(f"mode={mode!r}: the engines that are here have no modes; leave it out.")
    return _unboxed(compile_graph(module, inputs, Options.of(options)))


def _unboxed(compiled: Compiled) -> Callable[..., Any]:
    return lambda *args: compiled(list(args))


def compile_graph(module: GraphModule, inputs: Sequence[Any], options: Options) -> Compiled:
    """Takes one captured graph through all stages."""
    flow = Flow.start(module, inputs, options)
    flow = pre_grad(flow)
    flow = autograd(flow)
    flow = joint(flow)
    flow = partition(flow)
    flow = post_grad(flow)
    return engine(flow)


@dataclass(frozen=True)
class Flow:
    """What is handed from stage to stage."""

    module: GraphModule
    inputs: Sequence[Any]
    options: Options
    pipeline: Pipeline
    is_inference: bool

    @staticmethod
    def start(module: GraphModule, inputs: Sequence[Any], options: Options) -> Flow:
        differentiable = any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
        is_inference = not (torch.is_grad_enabled() and differentiable)
        return Flow(module, inputs, options, Pipeline.of(options), is_inference)

    def run_passes(self, stage: Stage) -> Flow:
        context = Context(stage, self.options, self.is_inference)
        self.pipeline.run(stage, self.module, context, self.options.instruments)
        return self

    def skip_passes(self, stage: Stage, reason: str) -> Flow:
        context = Context(stage, self.options, self.is_inference)
        skip_steps(self.pipeline.stage(stage), stage, self.module, context, self.options.instruments, reason)
        return self


def pre_grad(flow: Flow) -> Flow:
    """Passes on the captured graph."""
    return flow.run_passes("pre_grad")


def autograd(flow: Flow) -> Flow:
    """The captured graph passes through: eager autograd differentiates it."""
    return flow


def joint(flow: Flow) -> Flow:
    """The captured graph passes through: it is no joint graph."""
    return flow.skip_passes(
        "joint", "the captured graph goes to the engine without a joint graph; see joint_graph_passes"
    )


def partition(flow: Flow) -> Flow:
    """The captured graph passes through: there is nothing to part."""
    return flow


def post_grad(flow: Flow) -> Flow:
    """The captured graph passes through: it is neither a forward nor a backward ATen graph."""
    return flow.skip_passes("post_grad", "the captured graph goes to the engine unpartitioned; see post_grad_passes")


def engine(flow: Flow) -> Compiled:
    """Makes the graph runnable; where the engine cannot, the graph runs as it is, and a warning says so."""
    make = find_engine(flow.options.engine)
    job = Job(flow.module, flow.inputs, flow.is_inference)
    try:
        return make(job)
    except Exception as error:
        if flow.options.strict:
            raise EductorError(f"the engine {flow.options.engine!r} failed: {error!r}") from error
        warnings.warn(
            f"the engine {flow.options.engine!r} failed, so the graph runs with the engine 'aten': {error!r}",
            EductorWarning,
            stacklevel=2,
        )
        return find_engine("aten")(job)
