"""One operator in eager and compiled: all that a caller can see of its calls, compared."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

import eductor
from programs.comparing import Case, Observation, Program, after_call, differences, observe, versions, watched

from .database import OPERATORS, UNREPEATABLE, Call, calls
from .exclusions import NOT_GENERATED


@dataclass
class Report:
    """What a sweep saw of one operator."""

    name: str
    forward: int = 0
    backward: int = 0
    refused: int = 0  # calls that eager refuses, and the compiled program too
    graphs: int = 0
    uncaptured: Counter = field(default_factory=Counter)  # why Dynamo left calls to eager
    fallbacks: Counter = field(default_factory=Counter)  # what Eductor warned of
    differences: list = field(default_factory=list)

    def as_json(self) -> dict:
        return vars(self)


def sweep(name: str, profile: str, engine: Any = "aten") -> Report:
    """Each call of an operator, in eager and through all stages; a few of them where each costs a C++ compiler's time."""
    report, op = Report(name), OPERATORS[name]

    def compile(fn: Any) -> Any:
        return eductor.compile(fn, engine=engine, profile=profile, dynamic=False, fallback_random=engine == "inductor")

    for number, call in among_others(op) if engine == "inductor" else enumerate(calls(op)):
        program = as_program(op, call)
        expected = observe(lambda fn: fn, program)
        if call.form == "error" and expected.raised is None:
            continue
        got = watched_for_warnings(compile, program, report)
        count(report, call, expected)
        if expected.raised and (got.raised or "").startswith("TorchRuntimeError"):
            continue  # what Dynamo makes of any error of an operator on fake tensors
        found = differences(expected, got, exact=profile == "exact")
        if op.name in UNREPEATABLE:
            found = [d for d in found if "values differ" not in d]
        report.differences += [f"call {number}, {call.form}: {d}" for d in found]
    faults = ("the pass ",) if name in NOT_GENERATED else ("the pass ", "the engine ")
    report.differences += [warning for warning in report.fallbacks if warning.startswith(faults)]
    return report


def among_others(op: Any) -> Iterator[tuple[int, Call]]:
    """The first calls among other operators and in place, with a gradient and without; the first one, if there is none."""
    found = {}
    for number, call in enumerate(calls(op)):
        found.setdefault((call.form, call.requires_grad), (number, call))
    among = [place for (form, _), place in found.items() if form in ("in a program", "in place")]
    return iter(among or [*found.values()][:1])


def watched_for_warnings(compile: Callable, program: Program, report: Report) -> Observation:
    """What can be seen of a compiled program; what it warned of is counted."""
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = observe(compile, program)
    report.graphs += counters["stats"]["unique_graphs"]
    report.uncaptured.update(reason.splitlines()[0] for reason in counters["graph_break"])
    report.fallbacks.update(
        str(w.message).splitlines()[0].partition("; the captured graph")[0]
        for w in caught
        if issubclass(w.category, eductor.EductorWarning)
    )
    return got


def count(report: Report, call: Call, expected: Observation) -> None:
    report.refused += expected.raised is not None
    report.forward += expected.raised is None
    report.backward += expected.raised is None and bool(expected.facts.get("has a backward"))


def as_program(op: Any, call: Call) -> Program:
    return Program(name=call.form, lines=(), make=lambda: case_of(op, call), steps=forward_and_backward, raises=True)


def case_of(op: Any, call: Call) -> Case:
    """Fresh memory with the same layout: arguments that share some still do."""
    input, args, kwargs = copied((call.input, call.args, call.kwargs))
    leaves = {}
    if call.requires_grad:
        pytree.tree_map(follow, (input, args, kwargs))
    if call.form == "in place" and call.requires_grad:
        leaves["leaf"] = input
        input = input.clone()
    if call.form == "out":
        results = op(input, *args, **kwargs)
        outs = [torch.empty_like(x) if isinstance(x, torch.Tensor) else x for x in pytree.tree_leaves(results)]
        kwargs["out"] = outs[0] if isinstance(results, torch.Tensor) else tuple(outs)
    return Case(FORMS[call.form](op), (input, args, kwargs), leaves)


def copied(values: Any) -> Any:
    known: dict = {}

    def copy_of(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return copy.deepcopy(x, known) if x.layout is torch.strided else x.clone()

    return pytree.tree_map(copy_of, values)


def follow(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()):
        x.requires_grad_()
    return x


def traceable(fn: Any) -> Any:
    """A function that the database spells out, as one of ours: Dynamo looks into none of torch's tests.

    The seed that it would set before each call is set once, before the program: so the state after it can be compared.
    """
    if not isinstance(fn, FunctionType) or not fn.__module__.startswith("torch.testing"):
        return fn
    code = fn.__code__.replace(co_filename=__file__)
    scope = {**fn.__globals__, "wrapper_set_seed": lambda op, *args, **kwargs: op(*args, **kwargs)}
    return FunctionType(code, scope, fn.__name__, fn.__defaults__, fn.__closure__)


def as_function(op: Any) -> Callable:
    fn = traceable(op.op)
    return lambda input, args, kwargs: fn(input, *args, **kwargs)


def as_method(op: Any) -> Callable:
    name = op.get_method().__name__
    return lambda input, args, kwargs: getattr(input, name)(*args, **kwargs)


def in_place(op: Any) -> Callable:
    fn = traceable(op.get_inplace())
    return lambda input, args, kwargs: fn(input, *args, **kwargs)


def in_a_program(op: Any) -> Callable:
    """Between other operators, which a pass may merge it with, and before a write to its input."""
    fn = traceable(op.op)

    def program(input: Any, args: tuple, kwargs: dict) -> Any:
        held = [x.clone() for x in input] if isinstance(input, (list, tuple)) else input.clone()
        result = fn(held, *args, **kwargs)
        several = list(result) if isinstance(result, (list, tuple)) else [result]
        later = [x * 2 for x in several if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if isinstance(held, torch.Tensor) and not held.requires_grad:
            held.add_(1)
            return result, later, held
        # Not what might be a view: gradients of both, it and what it views, are summed in another order than eager's.
        return later, [x.cos() for x in later]

    return program


FORMS = {
    "function": as_function,
    "method": as_method,
    "in place": in_place,
    "out": as_function,
    "in a program": in_a_program,
    "error": as_function,
}


def forward_and_backward(call: Callable, case: Case) -> dict:
    """What a call leaves behind, and the backward of all that it gives, from gradients in the layout of each."""
    named = watched(case)
    before = versions(named)
    outputs = call(*case.inputs)
    facts = after_call(outputs, named, before)
    tensors = [x for x in pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    followed = [x if x.layout is torch.strided else x.to_dense() for x in tensors]
    if followed:
        generator = torch.Generator().manual_seed(100)
        weights = [torch.empty_like(x, requires_grad=False) for x in followed]
        for weight in weights:
            weight.normal_(generator=generator)
        torch.autograd.backward(followed, weights)
    return facts | {"has a backward": bool(followed)}
