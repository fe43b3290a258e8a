"""From a captured graph to a function, stage by stage: read this from top to bottom.

    capture     Dynamo (torch's own)                             -> Torch-level graph
    pre_grad    passes on the captured graph, before autograd
                what depends on parameters alone moves out of it, in inference
    autograd    trace forward and backward, functionalize        -> joint ATen graph
    joint       passes on forward and backward together
    partition   what to save for the backward                    -> forward and backward graph
    post_grad   passes on each graph alone
    engine      makes each graph runnable

A graph that ahead-of-time autograd cannot take runs as it was captured, with a warning that names the reason.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

import torch
from torch.fx import GraphModule

from eductor.autograd import Joint, Parts, aot_dispatch_autograd
from eductor.autograd.undefined import without_undefined
from eductor.compat import compile_id, is_traced
from eductor.engines import ATEN, INDUCTOR, Compiled, Engine, Job, find_engine, has_code_generator
from eductor.engines.legalize.numbers import without_numbers
from eductor.errors import BadOption, EductorError, EductorWarning, Unsupported, see_more
from eductor.graph.evaluate import correct_captured
from eductor.graph.held import tensors_of
from eductor.graph.meta import requires_grad
from eductor.graph.snapshot import copy_of
from eductor.observe.artifacts import Artifacts
from eductor.observe.memory_curve import MemoryCurve
from eductor.observe.verifier import Verifier
from eductor.options import Options
from eductor.packing import can_pack, hoist
from eductor.partition import NoPlanFits, Plan, explain_saved, memory_curve, partition_fn, plan_for, plans_of, timeline
from eductor.pipeline.base import Context, GraphName, Role, Stage
from eductor.pipeline.instruments import PLACE, FlowStage, StageRun, watched
from eductor.pipeline.pipeline import Pipeline
from eductor.pipeline.runner import skip_steps

F = TypeVar("F", bound=Callable[..., Any])
_numbers = count(1)
_log = logging.getLogger("eductor")


def compile(model: F, *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any) -> F:
    """`torch.compile(model, backend="eductor")` with options as keywords, checked at once."""
    checked = Options.of(options)
    Pipeline.of(checked)
    plans_of(checked)
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
    try:
        pre_grad(flow, inputs)
        return pack(flow, inputs) or autograd(flow, inputs)
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
    graph: GraphName = field(default_factory=lambda: GraphName(next(_numbers), compile_id()))

    @staticmethod
    def start(module: GraphModule, options: Options) -> Flow:
        engine = choose_engine(options)
        if not engine.seeded_random:
            options = replace(options, fallback_random=True)
        if options.verify is not None:
            options = replace(options, instruments=(*options.instruments, Verifier(report=_log.info)))
        if is_traced():
            options = replace(options, instruments=(*options.instruments, Artifacts()))
        return Flow(module, options, Pipeline.of(options), engine)

    @contextmanager
    def stage(
        self, name: FlowStage, role: Role, module: GraphModule, inputs: Sequence[Any] = ()
    ) -> Iterator[dict[str, Any]]:
        """Around each stage, for those who look on; what it gives takes the facts that the stage says of its result."""
        run = StageRun(name, replace(self.graph, role=role), module, inputs)
        with watched(run, self.options.instruments):
            yield run.facts

    def run_passes(
        self, stage: Stage, role: Role, module: GraphModule, *, is_inference: bool, packs: bool = False
    ) -> None:
        graph = replace(self.graph, role=role)
        context = Context(stage, self.options, is_inference, graph, packs, fuses=self.engine.fuses)
        self.pipeline.run(stage, module, context, self.options.instruments)

    def skip_passes(self, stage: Stage, reason: str) -> None:
        context = Context(stage, self.options, is_inference=False, graph=self.graph)
        skip_steps(self.pipeline.stage(stage), stage, self.module, context, self.options.instruments, reason)


def pre_grad(flow: Flow, inputs: Sequence[Any]) -> None:
    """Passes on the captured graph."""
    differentiable = any(map(requires_grad, (*tensors_of(flow.module).values(), *inputs)))
    is_inference = not (torch.is_grad_enabled() and differentiable)
    packs = is_inference and flow.options.pack_weights and can_pack(flow.module, inputs)
    correct_captured(flow.module)
    with flow.stage("pre_grad", "captured", flow.module, inputs):
        flow.run_passes("pre_grad", "captured", flow.module, is_inference=is_inference, packs=packs)


def pack(flow: Flow, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """Where passes marked what depends on parameters alone: it is computed once, and autograd gets it as more inputs."""
    hoisted = hoist(flow.module, inputs)
    if hoisted is None:
        return None
    given = hoisted.inputs(inputs)
    return hoisted.around(autograd(replace(flow, module=hoisted.module), given, packed=len(given) - len(inputs)))


def autograd(flow: Flow, inputs: Sequence[Any], packed: int = 0) -> Callable[..., Any]:
    """Traces forward and backward together, and wraps what the stages below make of them."""
    given = flow.options.decompositions
    with flow.stage("autograd", "captured", flow.module, inputs) as facts:
        facts["packed"] = packed
        return aot_dispatch_autograd(
            flow.module,
            inputs,
            decompositions=flow.engine.decompositions(flow.options) if given is None else given,
            partition_fn=partial(partition, flow, facts),
            compile=partial(engine, flow),
            double_backward=flow.options.double_backward,
            exact=flow.options.profile == "exact",
            draws_anew=not flow.options.fallback_random and flow.options.profile != "exact",
        )


def partition(flow: Flow, traced: dict[str, Any], graph: Joint) -> Parts:
    """From a joint graph to a forward and a backward graph, with the passes before and after."""
    traced.update(nodes=len(graph.module.graph.nodes), gradients=len(graph.gradients))
    if not flow.engine.takes_numbers:
        without_numbers(graph.module)
    joint(flow, graph)
    with flow.stage("partition", "joint", graph.module) as facts:
        options = replace(flow.options, engine=flow.engine)
        plan = given_plan(flow, graph)
        parts = partition_fn(graph, plan=plan, options=options)
        facts.update(parts.facts() if flow.options.instruments else {})
        if graph.tangents and any(instrument.wants_details for instrument in flow.options.instruments):
            told = explain_saved(graph, plan=plan, options=options)
            facts["plan"] = told.to_json()
            facts["timeline"] = timeline(graph, told, options=options)
            if any(instrument.wants_curve for instrument in flow.options.instruments):
                facts["curve"] = MemoryCurve.of(memory_curve(graph, options=options), told).to_json()
    if parts.backward is not None and len(graph.tangents) > 1:
        parts = replace(parts, cut=partial(cut, flow, GraphModule(parts.backward, copy_of(parts.backward.graph))))
    post_grad(flow, parts)
    return parts


def given_plan(flow: Flow, graph: Joint) -> Plan | None:
    """The plan of the options that fits a joint graph; a warning says so if there are some and none does."""
    try:
        return plan_for(graph, flow.options) if graph.tangents else None
    except NoPlanFits as error:
        message = f"no plan fits the {replace(flow.graph, role='joint')}: {error}"
        if flow.options.strict:
            raise NoPlanFits(f"{message}. Make it anew: `eductor.explain(fn, *args).explain_saved()`.") from error
        _warn(f"{message}; what it saves is chosen anew. To see more: {see_more()}")
        return None


def joint(flow: Flow, graph: Joint) -> None:
    """Passes on forward and backward together."""
    with flow.stage("joint", "joint", graph.module):
        flow.run_passes("joint", "joint", graph.module, is_inference=not graph.tangents)


def post_grad(flow: Flow, parts: Parts) -> None:
    """Passes on each graph alone."""
    with flow.stage("post_grad", "forward", parts.forward):
        flow.run_passes("post_grad", "forward", parts.forward, is_inference=parts.backward is None)
    if parts.backward is not None:
        with flow.stage("post_grad", "backward", parts.backward):
            flow.run_passes("post_grad", "backward", parts.backward, is_inference=False)


def cut(flow: Flow, backward: GraphModule, defined: Sequence[bool]) -> tuple[GraphModule, list[bool]]:
    """The backward for a call in which some gradients are undefined: cut while it is functional, then as any other."""
    module, present = without_undefined(backward, defined)
    name = replace(flow.graph, role="backward")
    context = Context("post_grad", flow.options, is_inference=False, graph=name, fuses=flow.engine.fuses)
    flow.pipeline.run("post_grad", module, context)
    return module, present


def engine(flow: Flow, job: Job) -> Compiled:
    """Makes a graph runnable; where the engine cannot, the graph runs as it is, and a warning says so."""
    role: Role = "backward" if job.is_backward else "forward"
    try:
        with flow.stage("engine", role, job.module) as facts:
            facts["engine"] = flow.engine.name
            told = any(instrument.wants_details for instrument in flow.options.instruments)
            compiled = flow.engine(replace(job, mode=flow.options.mode, tells_kernels=told))
            if told:
                facts["kernels"] = [kernel.to_json() for kernel in compiled.kernels]
            return compiled
    except Exception as error:
        message = f"the engine {flow.engine.name!r} failed on the {replace(flow.graph, role=role)}"
        if flow.options.strict:
            raise EductorError(f"{message}: {error!r}") from error
        _warn(f"{message}, so it runs with the engine 'aten': {error!r}. To see more: {see_more()}")
        return ATEN(job)


def as_captured(flow: Flow, inputs: Sequence[Any], error: Exception) -> Callable[..., Any]:
    """The captured graph as it is, differentiated by eager's autograd: for what ahead-of-time autograd cannot take."""
    if isinstance(error, Unsupported):
        message = f"ahead-of-time autograd does not support {error}"
    else:
        place = getattr(error, PLACE, "before the first stage")
        message = f"the compile failed {place}: {type(error).__name__}: {error}"
    if flow.options.strict:
        raise EductorError(f"{message}.") from error
    _warn(f"{message}; the captured graph runs uncompiled, as in eager. To see more: {see_more()}")
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
