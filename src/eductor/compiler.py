"""Compiles a captured graph to a function, stage by stage: read this from top to bottom.

    capture     Dynamo (torch's own)                             -> Torch-level graph
    pre_grad    passes on the captured graph, before autograd
                hoists what depends on parameters alone, in inference
    autograd    trace forward and backward, functionalize        -> joint ATen graph
    joint       passes on forward and backward together
    partition   what to save for the backward                    -> forward and backward graph
    post_grad   passes on each graph alone
    lower       passes that the engine asks for, on its own copy of each graph
    engine      makes each graph runnable
    link        wraps them, so that mutation, aliasing and autograd look as in eager

The result of post_grad is cached on disk: on a hit, `from_disk` continues from there. A graph that ahead-of-time autograd
does not support runs as captured, with a warning that names the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

import torch
from torch.fx import GraphModule

from eductor.autograd import Traced, TraceOptions, link, trace_joint
from eductor.autograd.backward_variants import Backwards, without_undefined
from eductor.autograd.captured import Captured
from eductor.autograd.input_overlaps import overlapping
from eductor.autograd.link import check_fits, compile_job, deferred_backward
from eductor.cache import CompileCache, Entry
from eductor.compat import CompileState, compile_id, is_traced, without_autocast
from eductor.engines import ATEN, Engine, choose_engine
from eductor.errors import EductorError, RequiredPassFailed, Unsupported, see_more, warn, warnings_until_now
from eductor.graph.no import No
from eductor.graph.snapshot import copy_of, own_module
from eductor.graph.values.evaluate import correct_captured
from eductor.graph.values.meta import requires_grad
from eductor.graph.values.module_tensors import tensors_of
from eductor.launches import ReplayedProgram, candidate
from eductor.options import Options
from eductor.packing import Hoisted, can_pack, hoist
from eductor.partition import (
    NoPlanFits,
    Plan,
    choose_saves,
    curve_to_json,
    explain_saved,
    memory_curve,
    plan_for,
    plans_of,
    split,
    timeline,
)
from eductor.pipeline.base import STAGES, Context, GraphName, Role, Stage
from eductor.pipeline.instruments import RAISED_IN, FlowStage, StageRun, watched
from eductor.pipeline.pipeline import Pipeline
from eductor.pipeline.runner import skip_steps
from eductor.pipeline.structured_trace import Artifacts
from eductor.program.bodies import shared_calls
from eductor.program.job import Compiled, Job, forward_job
from eductor.program.joint import Joint
from eductor.program.parts import Parts, Program
from eductor.progress import shown
from eductor.verification.verifier import Verifier

F = TypeVar("F", bound=Callable[..., Any])
_numbers = count(1)
_log = logging.getLogger("eductor")


def compile(model: F, *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any) -> F:
    """`torch.compile(model, backend="eductor")` with options as keywords, checked at once."""
    checked = Options.of(options)
    chosen = checked_backend(checked)
    choose_engine(checked).load()
    compiled: Any = torch.compile(model, backend=chosen, fullgraph=fullgraph, dynamic=dynamic)
    return cast(F, compiled)


def checked_backend(options: Options) -> Callable[..., Any]:
    """A backend with these options, which it checks at once, and not only when Dynamo calls it."""
    plans_of(options)
    Pipeline.of(options, choose_engine(options).lower)

    def eductor(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(module, inputs, options)

    return eductor


def backend(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend `eductor`: Dynamo calls it with each captured graph."""
    chosen = Options.of(options)
    return compile_graph(module, inputs, chosen if mode is None else replace(chosen, mode=mode))


def compile_graph(module: GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """Compiles one captured graph through all stages.

    One thread at a time compiles a graph or a later backward, so instruments get no two calls at once.
    """
    with CompileState().entered():
        flow = Flow.start(options)
        try:
            flow = with_cache(flow, module, inputs)
            with flow.warmed_up(inputs):
                return from_disk(flow, module, inputs) or from_captured(flow, pre_grad(flow, module, inputs))
        except Exception as error:
            if isinstance(error, EductorError) and not isinstance(error, (Unsupported, RequiredPassFailed)):
                raise
            return as_captured(flow, module, inputs, error)


def from_captured(flow: Flow, graph: CapturedGraph) -> Callable[..., Any]:
    """Runs the stages from autograd on."""
    traced = trace(flow, graph)
    with without_autocast():  # the graph contains its casts
        joint(flow, traced.joint)
        parts = partition(flow, traced.joint)
        post_grad(flow, parts)
    program = traced.program(parts)
    keep(flow, graph, traced.captured, program)
    return from_program(flow, graph, traced.captured, program)


def from_program(flow: Flow, graph: CapturedGraph, captured: Captured, program: Program) -> Callable[..., Any]:
    """Runs the stages after those whose results are cached."""
    job = forward_job(program)
    compiled = compile_job(partial(generate, flow), job)
    backward = later_backward(flow, program, compiled, job.shared)
    forward = compiled.built()
    if forward is not compiled:  # its saved values have other strides
        backward = later_backward(flow, program, forward, job.shared)
    return linked(flow, graph, captured, program, forward, backward)


@dataclass(frozen=True)
class CapturedGraph:
    """A captured graph with its inputs, and the computations on parameters hoisted out of it."""

    module: GraphModule
    inputs: Sequence[Any]
    packed: Hoisted | None = None

    @staticmethod
    def of(module: GraphModule, inputs: Sequence[Any], packed: Hoisted | None) -> CapturedGraph:
        if packed is None:
            return CapturedGraph(module, inputs)
        return CapturedGraph(packed.module, packed.inputs(inputs), packed)


@dataclass(frozen=True)
class Flow:
    """The state shared by all stages. It lives as long as the compiled function, so it holds no inputs."""

    options: Options
    pipeline: Pipeline
    engine: Engine
    graph: GraphName
    warned_before: int
    cache: CompileCache | None = None

    @staticmethod
    def start(options: Options) -> Flow:
        engine = choose_engine(options)
        if not engine.seeded_random:
            options = replace(options, fallback_random=True)
        if options.verify is not None:
            options = replace(options, instruments=(*options.instruments, Verifier(report=_log.info)))
        if is_traced():
            options = replace(options, instruments=(*options.instruments, Artifacts()))
        name = GraphName(next(_numbers), compile_id())
        return Flow(options, Pipeline.of(options, engine.lower), engine, name, warnings_until_now())

    def without_regions(self) -> Flow:
        """The flow of a graph whose engine fails on repeated layers that share a body."""
        return replace(self, options=replace(self.options, regions=False))

    def without_tangents(self, undefined: Sequence[int]) -> Flow:
        """The flow of a backward that lacks these tangents; records name its graphs so."""
        variant = f"without {', '.join(f'tangents_{i + 1}' for i in undefined)}" if undefined else ""
        return replace(self, graph=replace(self.graph, variant=variant))

    @contextmanager
    def stage(
        self, name: FlowStage, role: Role, module: GraphModule, inputs: Sequence[Any] = ()
    ) -> Iterator[dict[str, Any]]:
        """Notifies instruments of a stage and shows it; yields the dictionary for the facts about its result."""
        run = StageRun(name, replace(self.graph, role=role), module, inputs)
        title = run.title(self.graph.number)
        # Instruments first: where one of them shows the stage on the terminal, the compile does not.
        with watched(run, self.options.instruments), shown(title, is_wanted=self.options.progress):
            yield run.facts

    def run_passes(self, stage: Stage, role: Role, module: GraphModule, *, is_inference: bool, **facts: Any) -> bool:
        """Runs the passes of a stage; returns whether one changed the graph. `facts` are further fields of `Context`."""
        graph, engine = replace(self.graph, role=role), self.engine
        facts |= {"fuses": engine.fuses, "takes_numbers": engine.takes_numbers}
        context = Context(stage, self.options, is_inference, graph, **facts)
        return self.pipeline.run(stage, module, context, self.options.instruments)

    def skip_passes(self, stage: Stage, module: GraphModule, reason: str) -> None:
        context = Context(stage, self.options, is_inference=False, graph=self.graph)
        skip_steps(self.pipeline.stage(stage), stage, module, context, self.options.instruments, reason)

    def warmed_up(self, inputs: Sequence[Any]) -> AbstractContextManager[None]:
        """Starts what the engine will wait for, and ends with it."""
        return self.engine.warmed_up(inputs, self.cache is not None and self.cache.is_warm)

    @property
    def wants_details(self) -> bool:
        return any(instrument.wants_details for instrument in self.options.instruments)


def with_cache(flow: Flow, module: GraphModule, inputs: Sequence[Any]) -> Flow:
    """The flow with the disk cache of this graph."""
    cache = CompileCache.of(
        flow.graph, module, inputs, flow.options, flow.pipeline, flow.engine, warned_before=flow.warned_before
    )
    return replace(flow, cache=cache)


def from_disk(flow: Flow, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """Compiles from cached graphs, without passes; None if none are cached for these inputs."""

    def resume(entry: Entry) -> Callable[..., Any] | None:
        packed = entry.hoisted(module)
        if packed is not None and packed.is_overwritten(inputs):
            return None
        graph = CapturedGraph.of(module, inputs, packed)
        captured, written = Captured(graph.module), entry.program.signature.written
        check_fits(entry.program, captured, graph.inputs)
        if written and overlapping([*captured.held, *graph.inputs], written):
            return None
        return from_program(flow, graph, captured, entry.program)

    return flow.cache.resumed(resume) if flow.cache is not None else None


def pre_grad(flow: Flow, module: GraphModule, inputs: Sequence[Any]) -> CapturedGraph:
    """Runs passes on the captured graph, then hoists the computations on parameters that they marked."""
    differentiable = any(map(requires_grad, (*tensors_of(module).values(), *inputs)))
    is_inference = not (torch.is_grad_enabled() and differentiable)
    packs = is_inference and flow.options.pack_weights and can_pack(module, inputs)
    correct_captured(module)
    with flow.stage("pre_grad", "captured", module, inputs):
        flow.run_passes("pre_grad", "captured", module, is_inference=is_inference, packs=packs)
    return CapturedGraph.of(module, inputs, hoist(module, inputs))


def trace(flow: Flow, graph: CapturedGraph) -> Traced:
    """Traces forward and backward together."""
    options, given = flow.options, flow.options.decompositions
    with flow.stage("autograd", "captured", graph.module, graph.inputs) as facts:
        traced = trace_joint(
            graph.module,
            graph.inputs,
            TraceOptions(
                decompositions=flow.engine.decompositions(options) if given is None else given,
                double_backward=options.double_backward,
                exact=options.profile == "exact",
                redraws=not options.fallback_random and options.profile != "exact",
            ),
        )
        facts["packed"] = 0 if graph.packed is None else graph.packed.count
        facts.update(nodes=len(traced.joint.module.graph.nodes), gradients=len(traced.joint.gradients))
        return traced


def joint(flow: Flow, graph: Joint) -> None:
    """Runs passes on the joint graph of forward and backward."""
    with flow.stage("joint", "joint", graph.module):
        known: dict[str, Any] = {"gradients": graph.gradients, "parameters": graph.parameters}
        flow.run_passes("joint", "joint", graph.module, is_inference=not graph.tangents, **known)


def partition(flow: Flow, graph: Joint) -> Parts:
    """Splits a joint graph into a forward and a backward graph: chooses what to save, and in which form."""
    with flow.stage("partition", "joint", graph.module) as facts:
        options = replace(flow.options, engine=flow.engine)
        plan = given_plan(flow, graph)
        saves = choose_saves(graph, plan=plan, options=options)
        if graph.tangents and flow.wants_details:
            made = explain_saved(graph, plan=plan, options=options)
            facts["plan"] = made.to_json()
            facts["timeline"] = timeline(graph, made, options=options)
            if any(instrument.wants_curve for instrument in flow.options.instruments):
                facts["curve"] = curve_to_json(memory_curve(graph, options=options), made)
        known: dict[str, Any] = {"gradients": graph.gradients, "saved": saves.forms}
        edited = flow.run_passes("partition", "joint", graph.module, is_inference=not graph.tangents, **known)
        parts = split(graph, saves, edited=edited)
        if parts.backward is not None and len(graph.tangents) > 1:
            functional = GraphModule(parts.backward, copy_of(parts.backward.graph))
            parts = replace(parts, functional=lambda: functional)
        facts.update(parts.facts() if flow.options.instruments else {})
        return parts


def given_plan(flow: Flow, graph: Joint) -> Plan | None:
    """The plan of the options that fits a joint graph; warns if plans are given and none fits."""
    try:
        return plan_for(graph, flow.options) if graph.tangents else None
    except NoPlanFits as error:
        message = f"no plan fits the {replace(flow.graph, role='joint')}: {error}"
        if flow.options.strict:
            raise NoPlanFits(f"{message}. Recreate it: `eductor.explain(fn, *args).explain_saved()`.") from error
        warn(f"{message}; the partitioner chooses what to save. To see more: {see_more()}")
        return None


def post_grad(flow: Flow, parts: Parts) -> None:
    """Runs passes on the forward and on the backward graph."""
    run_post_grad(flow, "forward", parts.forward, is_inference=parts.backward is None)
    if parts.backward is not None:
        run_post_grad(flow, "backward", parts.backward, is_inference=False)


def run_post_grad(flow: Flow, role: Role, module: GraphModule, *, is_inference: bool) -> None:
    """Runs passes on one final graph."""
    with flow.stage("post_grad", role, module):
        flow.run_passes("post_grad", role, module, is_inference=is_inference)


def keep(flow: Flow, graph: CapturedGraph, captured: Captured, program: Program) -> None:
    """Stores the final graphs in the disk cache, unless inputs overlap or the outputs are not a flat tuple."""
    if flow.cache is not None and not captured.pairs and captured.spec is None:
        flow.cache.keep(program, graph.packed)


def generate(flow: Flow, job: Job) -> Compiled:
    """Lowers a graph and compiles it with the engine, which may still build its kernels: `Compiled.built` waits for them."""
    flow, lowered = flow.without_tangents(job.undefined), None
    try:
        lowered = lower(flow, job.role, job)
        compiled = engine(flow, job.role, lowered)
    except Exception as error:
        return instead(flow, job, lowered, error)
    if compiled.wait is None:
        return compiled
    return replace(compiled, wait=partial(waited, flow, job, lowered, compiled.wait))


def waited(flow: Flow, job: Job, lowered: Job, wait: Callable[[], Any]) -> Compiled | None:
    """Waits for the kernels of a compiled graph; returns what runs instead if one cannot be built."""
    with torch.no_grad(), without_autocast():
        try:
            with flow.stage("engine", job.role, lowered.module):
                wait()
            return None
        except Exception as error:
            return replace(instead(flow, job, lowered, error).built(), wait=None)


def instead(flow: Flow, job: Job, lowered: Job | None, error: Exception) -> Compiled:
    """What runs if the engine failed on a graph: its repeated layers one by one, or the engine `aten`, with a warning."""
    message = f"the engine {flow.engine.name!r} failed on the {replace(flow.graph, role=job.role)}"
    if flow.options.strict:
        raise EductorError(f"{message}: {error!r}") from error
    if lowered is not None and shared_calls(lowered.module):
        _log.info("%s, whose repeated layers share a body (%r): they are compiled one by one", message, error)
        return generate(flow.without_regions(), job)
    warn(f"{message}, so it runs with the engine 'aten': {error!r}. To see more: {see_more()}")
    return ATEN(job)


def lower(flow: Flow, role: Role, job: Job) -> Job:
    """Runs the engine's passes on a copy of the graph, as other variants of the backward need the original."""
    if all(step.is_slot for step in flow.pipeline.stage("lower")):
        return job
    module = own_module(job.module)
    with flow.stage("lower", role, module):
        if flow.run_passes("lower", role, module, is_inference=job.is_inference):
            module.delete_all_unused_submodules()
    return replace(job, module=module)


def engine(flow: Flow, role: Role, job: Job) -> Compiled:
    """Compiles a graph with the engine."""
    with flow.stage("engine", role, job.module) as facts:
        facts["engine"] = flow.engine.name
        options, details = flow.options, flow.wants_details
        settings: dict[str, Any] = {"mode": options.mode, "rounds": options.round_intermediates}
        # An instrument sees one stage after the other, each with all its time.
        compiled = flow.engine(replace(job, **settings, wants_kernels=details, defers=not options.instruments))
        if details:
            facts["kernels"] = [kernel.to_json() for kernel in compiled.kernels]
        return compiled


def later_backward(flow: Flow, program: Program, forward: Compiled, shared: dict[str, Any]) -> Backwards | None:
    """The backward, which the engine compiles on its first call, or while it builds kernels of the forward."""
    functional = program.parts.functional
    prune = partial(pruned, flow, functional) if functional is not None else None
    return deferred_backward(program, forward, partial(generate, flow), prune, shared)


def pruned(
    flow: Flow, functional: Callable[[], GraphModule], defined: Sequence[bool]
) -> tuple[GraphModule, list[bool]]:
    """The backward for calls with some undefined gradients: the functional graph pruned, then the post_grad passes."""
    whole = functional()
    flow = flow.without_tangents([i for i, is_defined in enumerate(defined) if not is_defined])

    def prune() -> tuple[GraphModule, list[bool]]:
        module, present = without_undefined(whole, defined)
        run_post_grad(flow, "backward", module, is_inference=False)
        return module, present

    return prune() if flow.cache is None else flow.cache.pruned(whole, defined, prune)


def linked(
    flow: Flow,
    graph: CapturedGraph,
    captured: Captured,
    program: Program,
    forward: Compiled,
    backward: Backwards | None,
) -> Callable[..., Any]:
    """Links the compiled parts to the function that the caller gets."""

    def recompile(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return from_captured(replace(flow, cache=None), CapturedGraph(module, inputs))

    with flow.stage("link", "captured", graph.module) as facts:
        exact, launches = flow.options.profile == "exact", replayed(flow, captured, program)
        if launches is not None:
            facts["launches"] = "replayed where that pays" if launches else f"not replayed: {launches}"
        how: dict[str, Any] = {"launches": launches or None, "exact": exact}
        run = link(captured, graph.inputs, program, forward, backward, recompile=recompile, **how)
        return run if graph.packed is None else graph.packed.around(run)


def replayed(flow: Flow, captured: Captured, program: Program) -> ReplayedProgram | No | None:
    """The program with launches to replay, or why there are none; None for graphs without a GPU."""
    if captured.pairs:
        return No("inputs share memory, and one of them is written")
    return candidate(program, flow.options, str(flow.graph), fuses=flow.engine.fuses)


def as_captured(flow: Flow, module: GraphModule, inputs: Sequence[Any], error: Exception) -> Callable[..., Any]:
    """Falls back to the captured graph and eager's autograd, if it is unsupported or its compile failed."""
    if isinstance(error, Unsupported):
        message = f"ahead-of-time autograd does not support {error}"
    else:
        place = getattr(error, RAISED_IN, "before the first stage")
        message = f"the compile failed {place}: {type(error).__name__}: {error}"
    if flow.options.strict:
        raise EductorError(f"{message}.") from error
    warn(f"{message}; the captured graph runs uncompiled, as in eager. To see more: {see_more()}")
    for stage in STAGES[1:]:
        flow.skip_passes(stage, module, message)
    run = ATEN(Job(module, inputs)).run
    with flow.stage("link", "captured", module):
        return lambda *args: run(list(args))
