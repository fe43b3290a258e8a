"""From a captured graph to a function, stage by stage: read this from top to bottom.

    capture     Dynamo (torch's own)                             -> Torch-level graph
    pre_grad    passes on the captured graph, before autograd
                what depends on parameters alone moves out of it, in inference
    autograd    trace forward and backward, functionalize        -> joint ATen graph
    joint       passes on forward and backward together
    partition   what to save for the backward                    -> forward and backward graph
    post_grad   passes on each graph alone
    lower       what the engine needs beyond that, on its own copy of each graph
    engine      makes each graph runnable

What post_grad leaves is kept on disk: where the same was compiled before, `resume` goes on from there. A graph that
ahead-of-time autograd cannot take runs as it was captured, with a warning that names the reason.
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

from eductor.autograd import Joint, Parts, Program, aot_dispatch_autograd, aot_resume_autograd
from eductor.autograd.undefined_gradients import without_undefined
from eductor.cache import Entry, NotKept, Question, Store
from eductor.compat import compile_id, is_traced
from eductor.engines import ATEN, INDUCTOR, Compiled, Engine, Job, find_engine, has_code_generator
from eductor.errors import (
    BadOption,
    EductorError,
    EductorWarning,
    RequiredPassFailed,
    Unsupported,
    see_more,
    warn,
    warnings_until_now,
)
from eductor.graph.snapshot import copy_of, own_module
from eductor.graph.values.evaluate import correct_captured
from eductor.graph.values.meta import requires_grad
from eductor.graph.values.module_tensors import tensors_of
from eductor.observe.explain.memory_curve import MemoryCurve
from eductor.observe.structured_trace import Artifacts
from eductor.observe.verify.verifier import Verifier
from eductor.options import Options
from eductor.packing import Hoisted, can_pack, hoist
from eductor.partition import (
    NoPlanFits,
    Plan,
    choose_saves,
    explain_saved,
    memory_curve,
    plan_for,
    plans_of,
    split,
    timeline,
)
from eductor.pipeline.base import STAGES, Context, GraphName, Role, Stage
from eductor.pipeline.instruments import PLACE, FlowStage, StageRun, watched
from eductor.pipeline.pipeline import Pipeline
from eductor.pipeline.runner import skip_steps

F = TypeVar("F", bound=Callable[..., Any])
_numbers = count(1)
_log = logging.getLogger("eductor")


def compile(model: F, *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any) -> F:
    """`torch.compile(model, backend="eductor")` with options as keywords, checked at once."""
    checked = Options.of(options)
    plans_of(checked)
    Pipeline.of(checked, choose_engine(checked).lower)

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
        flow = ask(flow, inputs)
        known = resume(flow, inputs)
        if known is not None:
            return known
        pre_grad(flow, inputs)
        return pack(flow, inputs) or autograd(flow, inputs)
    except Exception as error:
        if isinstance(error, EductorError) and not isinstance(error, (Unsupported, RequiredPassFailed)):
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
    warned_before: int = field(default_factory=warnings_until_now)
    question: Question | None = None
    """What to look for on disk, and to leave there; None where this compile is not to be kept, or cannot be."""

    @staticmethod
    def start(module: GraphModule, options: Options) -> Flow:
        engine = choose_engine(options)
        if not engine.seeded_random:
            options = replace(options, fallback_random=True)
        if options.verify is not None:
            options = replace(options, instruments=(*options.instruments, Verifier(report=_log.info)))
        if is_traced():
            options = replace(options, instruments=(*options.instruments, Artifacts()))
        return Flow(module, options, Pipeline.of(options, engine.lower), engine)

    @contextmanager
    def stage(
        self, name: FlowStage, role: Role, module: GraphModule, inputs: Sequence[Any] = ()
    ) -> Iterator[dict[str, Any]]:
        """Around each stage, for those who look on; what it gives takes the facts that the stage says of its result."""
        run = StageRun(name, replace(self.graph, role=role), module, inputs)
        with watched(run, self.options.instruments):
            yield run.facts

    def run_passes(self, stage: Stage, role: Role, module: GraphModule, *, is_inference: bool, **facts: Any) -> bool:
        graph, engine = replace(self.graph, role=role), self.engine
        facts |= {"fuses": engine.fuses, "takes_numbers": engine.takes_numbers}
        context = Context(stage, self.options, is_inference, graph, **facts)
        return self.pipeline.run(stage, module, context, self.options.instruments)

    def skip_passes(self, stage: Stage, reason: str) -> None:
        context = Context(stage, self.options, is_inference=False, graph=self.graph)
        skip_steps(self.pipeline.stage(stage), stage, self.module, context, self.options.instruments, reason)


@contextmanager
def without_cache_on_failure(flow: Flow) -> Iterator[None]:
    """What is kept on disk saves time and nothing else: a compile goes on without it, whatever is wrong with it."""
    try:
        yield
    except NotKept as reason:
        _log.info("the %s is not kept on disk: it has %s", flow.graph, reason)
    except Exception as error:
        warnings.warn(f"the {flow.graph} is not kept on disk: {error!r}", EductorWarning, stacklevel=3)


def ask(flow: Flow, inputs: Sequence[Any]) -> Flow:
    """With what to look for among the graphs that are kept on disk."""
    options = flow.options
    if not options.cache or options.verify is not None or options.debug or options.plans or not Store.default().limit:
        return flow
    with without_cache_on_failure(flow):
        return replace(flow, question=Question.of(flow.module, inputs, options, flow.pipeline, flow.engine))
    return flow


def resume(flow: Flow, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """From the graphs that an earlier compile left, without a pass; None where there are none, or somebody looks on."""
    if flow.question is None or flow.options.instruments:
        return None
    try:
        entry = flow.question.answer(Store.default())
        return None if entry is None else from_entry(flow, entry, inputs)
    except Exception as error:
        flow.question.give_up(Store.default(), error)
        return None


def from_entry(flow: Flow, entry: Entry, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """What an entry holds, compiled; None where it does not hold for these inputs."""
    module, given, hoisted = flow.module, inputs, entry.hoisted(flow.module)
    if hoisted is not None:
        if hoisted.is_overwritten(inputs):
            return None
        module, given = hoisted.module, hoisted.inputs(inputs)
    run = aot_resume_autograd(
        module,
        given,
        replace(entry.program, parts=with_cut(flow, entry.program.parts)),
        compile=partial(engine, flow),
        # What it needs takes long to load, and few programs come to it.
        again=lambda module, inputs: aot_dispatch_autograd(module, inputs, **dispatch_settings(flow, {})),
        exact=flow.options.profile == "exact",
    )
    if run is None:
        return None
    _log.info("the %s comes from disk: no pass runs", flow.graph)
    return run if hoisted is None else hoisted.around(run)


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
    return hoisted.around(autograd(replace(flow, module=hoisted.module), hoisted.inputs(inputs), hoisted))


def autograd(flow: Flow, inputs: Sequence[Any], hoisted: Hoisted | None = None) -> Callable[..., Any]:
    """Traces forward and backward together, and wraps what the stages below make of them."""
    keep = None if flow.question is None else partial(keep_on_disk, flow, flow.question, hoisted)
    with flow.stage("autograd", "captured", flow.module, inputs) as facts:
        facts["packed"] = 0 if hoisted is None else hoisted.count
        return aot_dispatch_autograd(flow.module, inputs, **dispatch_settings(flow, facts), keep=keep)


def dispatch_settings(flow: Flow, facts: dict[str, Any]) -> dict[str, Any]:
    """How autograd hands over to the stages below."""
    given = flow.options.decompositions
    return {
        "decompositions": flow.engine.decompositions(flow.options) if given is None else given,
        "partition_fn": partial(partition, flow, facts),
        "compile": partial(engine, flow),
        "double_backward": flow.options.double_backward,
        "exact": flow.options.profile == "exact",
        "draws_anew": not flow.options.fallback_random and flow.options.profile != "exact",
    }


def keep_on_disk(flow: Flow, question: Question, hoisted: Hoisted | None, program: Program) -> None:
    """Leaves the final graphs to later processes, unless the user was warned of something that they would not see."""
    if warnings_until_now() > flow.warned_before:
        return
    with without_cache_on_failure(flow):
        question.keep(Entry.of(program, hoisted, question.guards()), Store.default())


def partition(flow: Flow, traced: dict[str, Any], graph: Joint) -> Parts:
    """From a joint graph to a forward and a backward graph, with the passes before and after."""
    traced.update(nodes=len(graph.module.graph.nodes), gradients=len(graph.gradients))
    joint(flow, graph)
    with flow.stage("partition", "joint", graph.module) as facts:
        options = replace(flow.options, engine=flow.engine)
        plan = given_plan(flow, graph)
        saves = choose_saves(graph, plan=plan, options=options)
        if graph.tangents and any(instrument.wants_details for instrument in flow.options.instruments):
            told = explain_saved(graph, plan=plan, options=options)
            facts["plan"] = told.to_json()
            facts["timeline"] = timeline(graph, told, options=options)
            if any(instrument.wants_curve for instrument in flow.options.instruments):
                facts["curve"] = MemoryCurve.of(memory_curve(graph, options=options), told).to_json()
        edited = flow.run_passes(
            "partition",
            "joint",
            graph.module,
            is_inference=not graph.tangents,
            gradients=graph.gradients,
            saved=saves.forms,
        )
        parts = split(graph, saves, edited=edited)
        facts.update(parts.facts() if flow.options.instruments else {})
    if parts.backward is not None and len(graph.tangents) > 1:
        functional = GraphModule(parts.backward, copy_of(parts.backward.graph))
        parts = replace(parts, functional=lambda: functional)
    post_grad(flow, parts)
    return with_cut(flow, parts)


def with_cut(flow: Flow, parts: Parts) -> Parts:
    """With what makes the backward for calls in which some gradients are undefined."""
    return parts if parts.functional is None else replace(parts, cut=partial(cut, flow, parts.functional))


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
        flow.run_passes("joint", "joint", graph.module, is_inference=not graph.tangents, gradients=graph.gradients)


def post_grad(flow: Flow, parts: Parts) -> None:
    """Passes on each graph alone."""
    with flow.stage("post_grad", "forward", parts.forward):
        flow.run_passes("post_grad", "forward", parts.forward, is_inference=parts.backward is None)
    if parts.backward is not None:
        with flow.stage("post_grad", "backward", parts.backward):
            flow.run_passes("post_grad", "backward", parts.backward, is_inference=False)


def cut(flow: Flow, functional: Callable[[], GraphModule], defined: Sequence[bool]) -> tuple[GraphModule, list[bool]]:
    """The backward for a call in which some gradients are undefined: cut while it is functional, then as any other."""
    whole = functional()
    known = flow.question.cut(whole, defined, Store.default()) if flow.question is not None else None
    if known is not None:
        return known
    warned_before = warnings_until_now()
    module, present = without_undefined(whole, defined)
    name = replace(flow.graph, role="backward")
    context = Context("post_grad", flow.options, is_inference=False, graph=name, fuses=flow.engine.fuses)
    flow.pipeline.run("post_grad", module, context)
    if flow.question is not None and warnings_until_now() == warned_before:
        with without_cache_on_failure(flow):
            flow.question.keep_cut(whole, defined, module, present, Store.default())
    return module, present


def lower(flow: Flow, role: Role, job: Job) -> Job:
    """The passes that the engine asks for, on a copy of the graph: the graph is needed again for other backwards."""
    if all(step.is_slot for step in flow.pipeline.stage("lower")):
        return job
    module = own_module(job.module)
    with flow.stage("lower", role, module):
        if flow.run_passes("lower", role, module, is_inference=job.is_inference):
            module.delete_all_unused_submodules()
    return replace(job, module=module)


def engine(flow: Flow, job: Job) -> Compiled:
    """Makes a graph runnable; where the engine cannot, the graph runs as it is, and a warning says so."""
    role: Role = "backward" if job.is_backward else "forward"
    try:
        lowered = lower(flow, role, job)
        with flow.stage("engine", role, lowered.module) as facts:
            facts["engine"] = flow.engine.name
            told = any(instrument.wants_details for instrument in flow.options.instruments)
            compiled = flow.engine(replace(lowered, mode=flow.options.mode, tells_kernels=told))
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
    for stage in STAGES[1:]:
        flow.skip_passes(stage, message)
    run = ATEN(Job(flow.module, inputs)).run
    return lambda *args: run(list(args))


def _warn(message: str) -> None:
    warn(message, stacklevel=3)


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
