"""Runs a straight-line program in eager and after the pre-grad stage, compares all that can be seen, and makes it smaller."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch import nn
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

from eductor.compat import FakeTensorMode, taking_real_tensors
from eductor.compiler import compile_graph
from eductor.graph.values.evaluate import propagate
from eductor.graph.values.meta import difference, results_of, value_of
from eductor.graph.values.module_tensors import swapped
from eductor.graph.values.value_comparison import is_bitwise_equal, unlike_rounding
from eductor.options import Options
from eductor.pipeline import Pipeline, Recorder
from eductor.stages import pre_grad_passes

from .comparing import Case, Observation, Seen, compare, compare_tensors, differences, gradients, once, seen, watched
from .straight import BLOCKS, END, Name, Program, mapped

Compile = Callable[[Program, Case], Callable[..., Any]]


@dataclass
class Judgement:
    """How a program differs from eager, and which passes changed it."""

    differences: list = field(default_factory=list)
    changed: list = field(default_factory=list)

    @property
    def names(self) -> set:
        return {address.rpartition("/")[2].partition("#")[0] for address in self.changed}


def runs(program: Program) -> bool:
    """Whether eager runs it, backward included, for each size of the batch."""
    try:
        for batch in program.batches:
            observed(program, in_eager, batch)
    except Exception:
        return False
    return True


def judge(program: Program, way: str = "passes", **options: Any) -> Judgement:
    """Compares a program with itself after the passes, run node by node (`passes`, or `aten` from its ATen graph), or
    compiled through Dynamo (`compiled`)."""
    recorder = Recorder()
    chosen = Options(strict=True, instruments=(recorder,), **options)
    expected = [observed(program, in_eager, batch) for batch in program.batches]
    try:
        call_of, batches = WAYS[way](program, chosen)
        got = [observed(program, call_of, batch) for batch in batches]
    except Exception as error:
        return Judgement([f"raises {type(error).__name__}: {error}"], recorder.changed())
    judgement = Judgement(changed=recorder.changed())
    exact = way != "compiled" and _is_exact(judgement.changed, chosen)
    for batch, old, new in zip(batches, expected, got, strict=False):
        found = differences(Observation(old), Observation(new), exact=True)
        if found and not exact:
            found = unlike(old, new, truth_of(program, batch), program.narrowest())
        judgement.differences += [f"batch {batch}, {text}" if program.dynamic else text for text in found]
    return judgement


def unlike(old: dict, new: dict, truth: dict, narrowest: torch.dtype) -> list:
    """How two runs differ, where results may be a little further from a run in float64 than before."""

    def judged(name: str) -> Callable[[torch.Tensor, torch.Tensor], bool]:
        wide = truth.get(name)
        return lambda a, b: not unlike_rounding(a, b, _judge_of(a, wide), narrowest)

    found = [f"{name}: only one run has it" for name in old.keys() ^ new.keys()]
    for name in old.keys() & new.keys():
        a, b = old[name], new[name]
        both = isinstance(a, Seen) and isinstance(b, Seen)
        found += compare_tensors(name, a, b, judged(name)) if both else compare(name, a, b, judged(name))
    return found


def truth_of(program: Program, batch: int) -> dict:
    """What a run in float64 gives; nothing where it fails: more dtypes are equal there, so that more is the same tensor."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # which whole numbers become
    try:
        # What autocast copied may be written in the program, and is no copy in float64.
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            return observed(program.widened(), in_eager, batch)
    except RuntimeError:
        return {}
    finally:
        torch.set_default_dtype(usual)


def _judge_of(value: torch.Tensor, wide: Any) -> torch.Tensor | None:
    """The result in float64, where it can judge: what is computed in float64 throughout rounds no less than others do."""
    if not isinstance(wide, Seen) or (value.dtype is torch.float64 and is_bitwise_equal(value, wide.value)):
        return None
    return wide.value


def observed(program: Program, call_of: Compile, batch: int) -> dict:
    """One call, its backward, a change of the parameters and a second call where there is no backward, writes to outputs."""
    case = case_of(program, batch)
    named = watched(case)
    with torch.set_grad_enabled(program.grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = call_of(program, case)
        outputs: list = []

        def kept(*args: Any) -> Any:
            outputs.append(call(*args))
            return outputs[-1]

        facts = once(kept, case)
        facts |= gradients(named)
        facts |= {f"{name}, written afterwards": seen(x) for name, x in written(outputs[0], named).items()}
        parameters = list(case.fn.parameters())
        if parameters and not program.grad:
            with torch.no_grad():
                parameters[0].mul_(3)
            facts |= {f"output {i}, second call": seen(x) for i, x in enumerate(call(*case_of(program, batch).inputs))}
    return facts


def written(outputs: Sequence[Any], named: dict) -> dict:
    """Writes to each output after the other; gives all that may have changed, and what could not be written."""
    facts: dict[str, Any] = {}
    with torch.no_grad():
        for i, out in enumerate(outputs):
            try:
                out.add_(10 * (i + 1))
            except RuntimeError:
                facts[f"output {i} cannot be written"] = True
    return facts | {f"output {i}": out for i, out in enumerate(outputs)} | named


def case_of(program: Program, batch: int) -> Case:
    """Inputs and a module with the parameters, made anew."""
    tensors = {i.name: i.make(batch) for i in program.inputs}
    module = nn.Module()
    for given in program.inputs:
        if given.held:
            setattr(module, given.name, nn.Parameter(tensors[given.name].detach(), given.requires_grad))
    with torch.enable_grad():
        inputs = [tensors[i.name] if i.is_leaf else tensors[i.name].clone() for i in program.inputs if not i.held]
    behind = {f"behind {i.name}": tensors[i.name] for i in program.inputs if not i.is_leaf}
    return Case(module, tuple(inputs), behind)


def in_eager(program: Program, case: Case) -> Callable[..., Any]:
    return types.MethodType(program.function(), case.fn)


def after_passes(program: Program, options: Options) -> tuple[Compile, Sequence[int]]:
    """The graph as Dynamo would capture it, after the passes."""
    case = case_of(program, program.batches[0])
    fakes, env = program.fakes(_inputs(program, case))
    graph = program.graph_module(case.fn, fakes)
    return _run_stage(program, graph, env, options)


def after_passes_on_aten(program: Program, options: Options) -> tuple[Compile, Sequence[int]]:
    """The graph of ATen operators before dispatch, as torch.export gives it, after the passes."""
    case = case_of(program, program.batches[0])
    fakes, _ = program.fakes(_inputs(program, case))
    torch_level = program.graph_module(case.fn, fakes)
    graph = _traced(program, case, torch_level)
    # Fresh ones: the trace has written the first, and its own values do not say what autograd follows.
    fakes, env = program.fakes(_inputs(program, case_of(program, program.batches[0])))
    for node in graph.graph.nodes:
        node.meta.pop("val", None)
    with torch.set_grad_enabled(program.grad):
        propagate(graph, fakes)
    if any(
        difference(value_of(a), value_of(b)) for a, b in zip(results_of(torch_level), results_of(graph), strict=True)
    ):
        return after_passes(program, options)  # torch traces without autocast, and takes a cast that is one for none
    return _run_stage(program, graph, env, options)


def _traced(program: Program, case: Case, module: GraphModule) -> GraphModule:
    """A trace before dispatch; parameters are attributes in it, as they are in the graph that is traced."""
    parameters = dict(case.fn.named_parameters())
    fakes, env = program.fakes(_inputs(program, case_of(program, program.batches[0])))
    mode = fakes[0].fake_mode if fakes else FakeTensorMode(shape_env=env)
    held = [mode.from_tensor(p, static_shapes=True) for p in parameters.values()]

    def run(*args: Any) -> Any:
        with swapped(module, dict(zip(parameters, args, strict=False))):
            return Interpreter(module).run(*args[len(held) :])

    with torch.set_grad_enabled(program.grad), taking_real_tensors(mode), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = make_fx(run, pre_dispatch=True)(*held, *fakes)
        graph = traced.graph
        for placeholder, name in zip(graph.find_nodes(op="placeholder"), parameters, strict=False):
            with graph.inserting_after(placeholder):
                placeholder.replace_all_uses_with(graph.get_attr(name))
            graph.erase_node(placeholder)
    for name, parameter in parameters.items():
        setattr(traced, name, parameter)
    return traced


def _run_stage(program: Program, graph: GraphModule, env: Any, options: Options) -> tuple[Compile, Sequence[int]]:
    guards = _assumed(env)
    batches = [b for b in program.batches if _holds(env, b)]
    with torch.set_grad_enabled(program.grad):
        pre_grad_passes(graph, options=options)
    assert _assumed(env) == guards, f"a pass assumes something of sizes: {guards} became {_assumed(env)}"

    def call_of(program: Program, case: Case) -> Callable[..., Any]:
        return Interpreter(GraphModule({**dict(graph.named_modules()), **_held(graph, case)}, graph.graph)).run

    return call_of, batches


def _held(graph: GraphModule, case: Case) -> dict:
    """What the graph reads of its module, with the parameters of this run."""
    names = {str(n.target) for n in graph.graph.find_nodes(op="get_attr")}
    return {n: getattr(case.fn if hasattr(case.fn, n) else graph, n) for n in names if "." not in n}


def compiled(program: Program, options: Options) -> tuple[Compile, Sequence[int]]:
    """Through Dynamo and all stages; the batch is marked as one that may change."""

    class Nest(nn.Module):
        forward = program.function()

    def backend(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(graph, inputs, replace(options, engine="aten"))

    torch._dynamo.reset()
    made: list[Any] = []

    def call_of(program: Program, case: Case) -> Callable[..., Any]:
        module = made[0] if made else Nest()
        for name, parameter in case.fn.named_parameters():
            setattr(module, name, parameter)
        for given, x in zip([i for i in program.inputs if not i.held], case.inputs, strict=True):
            for dim, size in enumerate(given.shape):
                if size is None:
                    torch._dynamo.maybe_mark_dynamic(x, dim)
        made.append(module)
        return torch.compile(module, backend=backend, fullgraph=True)

    return call_of, program.batches


WAYS = {"passes": after_passes, "aten": after_passes_on_aten, "compiled": compiled}


def _inputs(program: Program, case: Case) -> dict:
    return {i.name: x for i, x in zip([i for i in program.inputs if not i.held], case.inputs, strict=True)}


def _assumed(env: Any) -> list:
    """What a capture assumes of its sizes."""
    return [] if env is None else [*(str(g.expr) for g in env.guards), *map(str, env.replacements.items())]


def _holds(env: Any, batch: int) -> bool:
    """Whether a graph that was captured with these assumptions is right for a size of the batch."""
    if env is None:
        return True
    value = sympy.Integer(batch)
    if any(target != value for target in env.replacements.values()):
        return False
    return all(g.expr.xreplace(dict.fromkeys(g.expr.free_symbols, value)) == sympy.true for g in env.guards)


def _is_exact(changed: Sequence[str], options: Options) -> bool:
    """Whether all passes that changed a program promise the same bits."""
    steps = {step.address: step for step in Pipeline.of(options).stage("pre_grad")}
    return all(steps[address].load().contract.numerics == "exact" for address in changed)


# --------------------------------------------------------------------------------------------------------- smaller


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A smaller program that fails as well: lines, outputs, gradients and sizes are left out as long as it does."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            if runs(candidate) and fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for i in reversed(range(len(program.steps))):
        candidate = _without(program, i)
        if candidate is not None:
            yield candidate
        yield from _bypassing(program, i)
        yield from _with_fewer_operands(program, i)
    for i in range(len(program.outputs)):
        if len(program.outputs) > 1:
            yield replace(program, outputs=program.outputs[:i] + program.outputs[i + 1 :]).used()
    for i, given in enumerate(program.inputs):
        for plainer in (
            replace(given, requires_grad=False),
            replace(given, layout="contiguous"),
            replace(given, held=False),
            replace(given, is_leaf=True),
            replace(given, dtype=torch.float32),
        ):
            if plainer != given:
                yield replace(program, inputs=(*program.inputs[:i], plainer, *program.inputs[i + 1 :]))
    if program.dynamic:
        fixed = [
            replace(i, shape=tuple(program.batches[0] if n is None else n for n in i.shape)) for i in program.inputs
        ]
        yield replace(program, inputs=tuple(fixed), batches=program.batches[:1])
    if program.grad and not any(i.requires_grad for i in program.inputs):
        yield replace(program, grad=False)


def _without(program: Program, place: int) -> Program | None:
    """A program without one of its lines and what depends on it; a block goes with its end."""
    steps = list(program.steps)
    gone = steps[place]
    if gone.target == END:
        return None
    removed = {place}
    if gone.target in BLOCKS:
        removed.add(_end_of(steps, place))
    lost = {gone.result} - {""}
    for i, step in enumerate(steps):
        if i > place and lost & set(step.names()):
            removed.add(i)
            lost |= {step.result} - {""}
    outputs = tuple(name for name in program.outputs if name not in lost)
    if not outputs:
        return None
    kept = tuple(step for i, step in enumerate(steps) if i not in removed)
    return replace(program, steps=kept, outputs=outputs).used()


def _bypassing(program: Program, place: int) -> Iterator[Program]:
    """Programs in which one of its operands stands for what a line computes."""
    gone = program.steps[place]
    if not gone.result:
        return
    for operand in dict.fromkeys(gone.names()):
        steps = [
            replace(step, args=args, kwargs=kwargs)
            for step in program.steps[:place] + program.steps[place + 1 :]
            for args, kwargs in [_renamed((step.args, step.kwargs), gone.result, operand)]
        ]
        outputs = tuple(operand if name == gone.result else name for name in program.outputs)
        yield replace(program, steps=tuple(steps), outputs=outputs).used()


def _renamed(value: Any, old: str, new: str) -> Any:
    return mapped(value, lambda name: Name(new) if name.text == old else name)


def _with_fewer_operands(program: Program, place: int) -> Iterator[Program]:
    """Programs in which one of the operands of a cat or stack is left out."""
    step = program.steps[place]
    operands = step.args[0] if step.args else step.kwargs.get("tensors")
    if not isinstance(operands, (list, tuple)):
        return
    for i in range(len(operands)):
        fewer = operands[:i] + operands[i + 1 :]
        args, kwargs = ((fewer, *step.args[1:]), step.kwargs) if step.args else ((), {**step.kwargs, "tensors": fewer})
        smaller = replace(step, args=args, kwargs=kwargs)
        if fewer:
            yield replace(program, steps=(*program.steps[:place], smaller, *program.steps[place + 1 :])).used()


def _end_of(steps: Sequence[Any], place: int) -> int:
    depth = 0
    for i in range(place, len(steps)):
        depth += (steps[i].target in BLOCKS) - (steps[i].target == END)
        if depth == 0:
            return i
    raise AssertionError("a block without an end")
