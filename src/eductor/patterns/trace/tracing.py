"""Traces patterns and replacements from ordinary functions.

A search function is traced on tensors with symbolic sizes, so that a size in the pattern is an expression of the
inputs' shapes. Numbers that are parameters are free: the function is traced twice with different ones, and each constant
that differs is explained by them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from eductor import compat
from eductor.compat import FakeTensorMode, ShapeEnv, make_fx
from eductor.errors import BadPattern
from eductor.graph import dialect_of, requires_grad, update
from eductor.graph.capture import functional
from eductor.graph.decomposition_tables import Table
from eductor.graph.values.kernel_layouts import with_kernel_layouts
from eductor.patterns.language.pattern import Outputs, Pattern
from eductor.patterns.trace.trace_comparison import TRACED as TRACED
from eductor.patterns.trace.trace_comparison import Trace, explained
from eductor.pipeline.base import TensorSpec


@dataclass(frozen=True, slots=True)
class Known:
    """A size that no node holds, so that it is no input: a trace finds it among the sizes of its tensors."""

    size: torch.SymInt | torch.SymFloat


TANGENT = "tangents_"
"""How the gradients of results are called in a pattern of forward and backward, numbered from 1."""


@dataclass(frozen=True, slots=True)
class SearchInputs:
    """The inputs of a search function: names, and an example of each."""

    names: tuple[str, ...]
    examples: tuple[Any, ...]
    gradients: tuple[bool, ...]
    """Which of them get one, where forward and backward are traced together; else none."""
    any_kind: bool = False
    """Whether the elements of tensors may be of another kind than those of the examples."""
    exclusive: frozenset[str] = frozenset()
    """The names that stand for different nodes."""

    @property
    def tensors(self) -> list[int]:
        return [i for i, x in enumerate(self.examples) if isinstance(x, torch.Tensor)]

    @property
    def is_joint(self) -> bool:
        return any(self.gradients)

    def raised(self, by: int) -> SearchInputs | None:
        """The same with so many more (or fewer) leading dimensions in the tensors that have the most; None if they run out."""
        most = max((x.dim() for x in self.examples if isinstance(x, torch.Tensor)), default=0)
        if most + by < 1:
            return None

        def raised(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or x.dim() != most:
                return x
            shape = (*(3,) * by, *x.shape) if by >= 0 else x.shape[-by:]
            return torch.zeros(shape, dtype=x.dtype, device=x.device)

        return replace(self, examples=tuple(map(raised, self.examples)))


def search_inputs(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    joint: bool = False,
    any_kind: bool = False,
    exclusive: Iterable[str] = (),
) -> SearchInputs:
    """The parameters of a function with examples: tensors, specs such as f32(2, 3), numbers, or functions that make them."""
    if not callable(fn):
        raise BadPattern(f"{fn!r} is nothing to look for: give a function, or an expression such as op(...).")
    if isinstance(inputs, (torch.Tensor, TensorSpec)):
        raise BadPattern("inputs: give a list of examples, one for each parameter.")
    made = tuple(_example(i, given) for i, given in enumerate(inputs))
    names = tuple(inspect.signature(fn).parameters)
    if len(names) != len(made):
        what = getattr(fn, "__name__", "the function")
        raise BadPattern(f"{what} takes {len(names)} inputs ({', '.join(names)}), {len(made)} examples were given.")
    reserved = next((name for name in names if joint and name.startswith(TANGENT)), None)
    if reserved is not None:
        raise BadPattern(f"the parameter {reserved!r}: names that begin with {TANGENT!r} are those of gradients here.")
    asked = any(isinstance(x, torch.Tensor) and x.requires_grad for x in made)

    def wants(x: Any) -> bool:
        return isinstance(x, torch.Tensor) and x.dtype.is_floating_point and (x.requires_grad or not asked)

    return SearchInputs(names, made, tuple(joint and wants(x) for x in made), any_kind, frozenset(exclusive))


def _example(i: int, given: Any) -> Any:
    if isinstance(given, TensorSpec):
        return given.make(i)
    return given() if callable(given) and not isinstance(given, torch.Tensor) else given


def pattern_of(
    fn: Callable[..., Any],
    inputs: SearchInputs,
    *,
    dialect: str = "aten",
    decompositions: Table | None = None,
    free: Mapping[str, Any] | None = None,
    probe: bool = True,
) -> Pattern:
    """The pattern of a search function, in the dialect and with the decompositions of the graphs to search.

    `free` names numbers that stand for themselves wherever they appear. Inputs have the ranks of the examples, and sizes
    that are equal in the trace are equal in a match. `probe` looks for branches on a number, which takes two more traces.
    """
    tracer = _Tracer(fn, inputs, dialect, decompositions)
    first = tracer.trace(_FIRST)
    if probe:
        tracer.refuse_branches(first)
    outputs, unused = _compared(tracer, first, _CHANGES, dict(free or {}))
    if unused:
        outputs, unused = _compared(tracer, first, list(tracer.other_values(unused)) or [_Change(1)], dict(free or {}))
    if unused:
        raise BadPattern(
            f"{tracer.name} has a parameter {unused[0]!r} that cannot be found in its graph: it decides how the function is "
            "traced, or it is not used. Take it out of the parameters, or say the pattern with op(...)."
        )
    return outputs if len(outputs.patterns) > 1 else outputs.patterns[0]


def _compared(
    tracer: _Tracer, first: Trace, changes: Iterable[_Change], free: Mapping[str, Any]
) -> tuple[Outputs, list[str]]:
    """What the first trace has in common with one that differs as much as the function allows: the most comes first."""
    problem: BadPattern | None = None
    least: tuple[Outputs, list[str]] | None = None
    for change in changes:
        try:
            found = explained(
                first,
                tracer.trace(change),
                tracer.inputs.names,
                free,
                exclusive=tracer.inputs.exclusive,
                any_kind=tracer.inputs.any_kind,
            )
        except BadPattern as error:
            problem = error
            continue
        if not found[1] or not change.others:
            return found
        least = least or found
    if least is None:
        assert problem is not None
        raise problem
    return least


@dataclass(frozen=True, slots=True)
class _Change:
    """The differences of a trace: always the numbers, and if possible sizes, floating dtypes, other parameters."""

    number: int = 1
    scale: int = 1
    dtypes: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)


# Numbers that nobody writes: what equals one of them in a trace came from the parameter that had it.
_UNUSUAL = ((0.3434177, 0.2718317), (0.4142271, 0.5772181), (0.1618079, 0.6931459), (0.8660283, 0.2236091))
_LARGE, _OWN = 2, 3
"""Instead of those: numbers beyond one, and those of the examples."""
# Each becomes one that operators treat alike: half precision is widened inside of some.
_DTYPES = {
    torch.float32: torch.float64,
    torch.float64: torch.float32,
    torch.float16: torch.bfloat16,
    torch.bfloat16: torch.float16,
}
_FIRST = _Change(0)
_CHANGES = (_Change(1, 2, _DTYPES), _Change(1, 2), _Change(1, 1, _DTYPES), _Change(1))


@dataclass(frozen=True, slots=True)
class _Tracer:
    """Traces one search function again and again, with other values."""

    fn: Callable[..., Any]
    inputs: SearchInputs
    dialect: str
    decompositions: Table | None

    @property
    def name(self) -> str:
        return str(getattr(self.fn, "__name__", "the search function"))

    def trace(self, change: _Change) -> Trace:
        try:
            return Trace(*_aten(self.fn, self.inputs, self._values(change), self.dialect, self.decompositions))
        except Exception as error:
            raise BadPattern(
                f"{self.name} cannot be traced on the example inputs: "
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from error

    def refuse_branches(self, first: Trace) -> None:
        """A function that makes other calls for other numbers is no one pattern."""
        if not any(isinstance(x, float) for x in self.inputs.examples):
            return
        for number in (_OWN, _LARGE):
            try:
                other = self.trace(_Change(number))
            except BadPattern:  # a number out of range, such as a large probability
                continue
            if other.calls() != first.calls():
                raise BadPattern(f"{self.name} makes other calls for other numbers: register it for each case.")

    def other_values(self, names: Sequence[str]) -> Iterator[_Change]:
        """Other values for parameters that are whole numbers or flags, to see where they come out."""
        given = {n: x for n, x in zip(self.inputs.names, self.inputs.examples, strict=True) if n in names}
        numbers = {n: x for n, x in given.items() if isinstance(x, int)}
        for step in (-1, 1, -2, 2) if len(numbers) == len(given) else ():
            yield _Change(1, others={n: not x if isinstance(x, bool) else x + step for n, x in numbers.items()})

    def _values(self, change: _Change) -> list[Any]:
        values: list[Any] = []
        floats = 0
        for name, x in zip(self.inputs.names, self.inputs.examples, strict=True):
            if isinstance(x, torch.Tensor):
                shape = [s * change.scale if s > 1 else s for s in x.shape]
                other = torch.zeros(shape, dtype=change.dtypes.get(x.dtype, x.dtype), device=x.device)
                values.append(x if change is _FIRST else other)
            elif isinstance(x, float):
                values.append(x if change.number == _OWN else _unusual(floats, change.number))
                floats += 1
            else:
                values.append(change.others.get(name, x))
        return values


def _unusual(place: int, number: int) -> float:
    pair, shift = _UNUSUAL[place % len(_UNUSUAL)], place // len(_UNUSUAL) * 1e-3
    return 7.0 + pair[0] + shift if number == _LARGE else pair[number] + shift


def _aten(
    fn: Callable[..., Any], inputs: SearchInputs, values: list[Any], dialect: str, decompositions: Table | None
) -> tuple[GraphModule, tuple[str, ...], list[Any]]:
    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))
    fakes = [_fake(name, x, mode) for name, x in zip(inputs.names, values, strict=True)]
    if dialect == "torch":
        return torch_graph(fn, fakes, mode), inputs.names, fakes
    module, tangents = aten_graph(fn, fakes, inputs.gradients, mode, decompositions)
    names = (*inputs.names, *(f"{TANGENT}{i + 1}" for i in range(len(tangents))))
    return module, names, [*fakes, *tangents]


def _fake(name: str, x: Any, mode: FakeTensorMode) -> Any:
    if isinstance(x, torch.Tensor):
        return mode.from_tensor(x.detach())
    if type(x) is int and mode.shape_env is not None:
        return compat.new_symbol(mode.shape_env, name, x) if x > 1 else x
    return x


def graph_like(
    module: GraphModule,
    fn: Callable[..., Any],
    values: Sequence[Any],
    gradients: Sequence[bool],
    mode: FakeTensorMode,
    tangents: Sequence[Any] = (),
) -> GraphModule:
    """A function as a graph that can be pasted to that of a module: before autograd it is differentiated later."""
    if dialect_of(module) == "torch" or any(map(requires_grad, flattened(values))):
        return torch_graph(fn, values, mode)
    return aten_graph(fn, values, gradients, mode, tangents=tangents or None)[0]


def torch_graph(fn: Callable[..., Any], values: Sequence[Any], mode: FakeTensorMode) -> GraphModule:
    """A function as a graph of the operators that it calls, as they are before autograd takes them apart."""
    filled, flat = _parted(values)
    with compat.without_tracing_context(), compat.taking_real_tensors(mode), mode, torch.enable_grad():
        module = _tidied(make_fx(lambda *given: fn(*filled(given)), pre_dispatch=True)(*flat))
        for placeholder, value in zip(module.graph.find_nodes(op="placeholder"), flat, strict=True):
            placeholder.meta["val"] = value  # the trace forgets what requires a gradient
        update(module, [n for n in module.graph.nodes if n.op == "call_function"])
        return module


def _parted(values: Sequence[Any]) -> tuple[Callable[[Sequence[Any]], list[Any]], list[Any]]:
    """The values that are inputs of a trace, and a function that puts others in their places."""

    def filled(given: Sequence[Any]) -> list[Any]:
        rest = iter(given)

        def fill(value: Any) -> Any:
            if isinstance(value, list):
                return [fill(v) for v in value]
            if isinstance(value, Known):
                return value.size
            return next(rest) if isinstance(value, TRACED) else value

        return [fill(v) for v in values]

    return filled, [v for v in flattened(values) if isinstance(v, TRACED)]


def flattened(values: Any) -> Iterator[Any]:
    """The elements of nested lists, in their order."""
    for value in values:
        yield from flattened(value) if isinstance(value, list) else (value,)


def aten_graph(
    fn: Callable[..., Any],
    values: Sequence[Any],
    gradients: Sequence[bool],
    mode: FakeTensorMode,
    decompositions: Table | None = None,
    tangents: Sequence[Any] | None = None,
) -> tuple[GraphModule, list[torch.Tensor]]:
    """A function as an ATen graph on fake values, which are its inputs, but for numbers; with its backward if any needs one.

    Also returns the tangents that the backward takes: those given, or like the results.
    """
    filled, flat = _parted(values)
    table = dict(decompositions or {})
    with compat.without_tracing_context():
        if not any(gradients):
            with compat.taking_real_tensors(mode), mode, torch.no_grad():
                traced = make_fx(lambda *given: fn(*filled(given)), decomposition_table=table)(*flat)
                return _tidied(functional(traced, flat)), []
        with compat.tracing_autograd(mode), compat.enable_python_dispatcher():
            wanted = [g for g, v in zip(gradients, values, strict=True) if any(v is x for x in flat)]
            return _joint_graph(fn, filled, flat, wanted, table, tangents)


def _joint_graph(
    fn: Callable[..., Any],
    filled: Callable[[Sequence[Any]], list[Any]],
    flat: list[Any],
    wanted: Sequence[bool],
    table: dict[Any, Any],
    tangents: Sequence[Any] | None,
) -> tuple[GraphModule, list[torch.Tensor]]:
    primals = [v.detach().requires_grad_() if g else v for v, g in zip(flat, wanted, strict=True)]

    def results(given: Sequence[Any]) -> list[Any]:
        found = fn(*filled(given))
        return list(found) if isinstance(found, (list, tuple)) else [found]

    with torch.enable_grad():
        values = results(primals)
        differentiable = [i for i, r in enumerate(values) if isinstance(r, torch.Tensor) and r.requires_grad]
        taken = list(tangents or [torch.empty_like(values[i]).detach() for i in differentiable])

        def joint(*given: Any) -> Any:
            made, there = results(given[: len(flat)]), given[len(flat) :]
            sources = [x for x, g in zip(given, wanted, strict=False) if g]
            found = iter(torch.autograd.grad([made[i] for i in differentiable], sources, there, allow_unused=True))
            return [*made, *(next(found) if g else None for g in wanted)]

        module = make_fx(joint, decomposition_table=with_kernel_layouts(table, table))(*primals, *taken)
    with torch.no_grad():
        return _tidied(functional(module, [*flat, *taken])), taken


def _tidied(module: GraphModule) -> GraphModule:
    """Removes dead code and `detach`, which a graph after autograd does not have."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    module.graph.eliminate_dead_code()
    return module
