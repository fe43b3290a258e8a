"""Random programs that write: through views, by index, over parts, with copies in between, and return what they made.

A program is a list of steps on values by number. Eager decides what a step may be: one that raises there is left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule

aten = torch.ops.aten
SHAPES = ((4, 4), (4, 3), (2, 4, 3), (6,))
DTYPES = (torch.float32, torch.float32, torch.float32, torch.int32, torch.bfloat16)


@torch.library.custom_op("eductor_tests::raise_by", mutates_args={"x"})
def raise_by(x: torch.Tensor, by: torch.Tensor) -> None:
    """A mutable operator of somebody else's."""
    x.add_(by.sum().to(x.dtype))


@dataclass(frozen=True)
class Step:
    """A call of an operator or a method; `V(i)` stands for the value i."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class V:
    """The value of this number: inputs first, then one for each step."""

    number: int

    def __repr__(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True)
class Program:
    """Inputs by shape and dtype, some of them views of others, the steps, and which values are returned."""

    inputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    aliased: bool
    steps: tuple[Step, ...]
    returned: tuple[int, ...]

    def make_inputs(self) -> list[torch.Tensor]:
        made = []
        for seed, (shape, dtype) in enumerate(self.inputs):
            generator = torch.Generator().manual_seed(seed)
            made.append(torch.randint(-4, 5, shape, generator=generator).to(dtype))
        return [*made, made[0][1:]] if self.aliased else made

    @property
    def count(self) -> int:
        return len(self.inputs) + self.aliased

    def module(self) -> GraphModule:
        """The graph as a capture gives it."""
        graph = Graph()
        values: list[Any] = [graph.placeholder(f"x{i}") for i in range(self.count)]
        for step in self.steps:
            args = _filled(step.args, values)
            make = graph.call_method if isinstance(step.target, str) else graph.call_function
            values.append(make(step.target, args, dict(step.kwargs)))
        graph.output(tuple(values[i] for i in self.returned))
        return GraphModule({}, graph)

    def without(self, index: int) -> Program | None:
        """The program without a step, where nothing needs it."""
        gone = self.count + index
        if gone in self.returned or any(gone in _used(step) for step in self.steps):
            return None
        steps = [_renumbered(s, gone) for k, s in enumerate(self.steps) if k != index]
        return replace(self, steps=tuple(steps), returned=tuple(i - (i > gone) for i in self.returned))

    def __str__(self) -> str:
        lines = [f"v{i} = {shape} {dtype}" for i, (shape, dtype) in enumerate(self.inputs)]
        lines += [f"v{self.count - 1} = v0[1:]"] if self.aliased else []
        for k, step in enumerate(self.steps):
            kwargs = [f"{name}={value!r}" for name, value in step.kwargs]
            lines.append(f"v{self.count + k} = {step.target}({', '.join([*map(repr, step.args), *kwargs])})")
        return "\n".join([*lines, f"return {', '.join(f'v{i}' for i in self.returned)}"])


def _filled(given: Any, values: list[Any]) -> Any:
    if isinstance(given, V):
        return values[given.number]
    return type(given)(_filled(x, values) for x in given) if isinstance(given, (tuple, list)) else given


def _used(step: Step) -> set[int]:
    found: set[int] = set()

    def visit(given: Any) -> None:
        if isinstance(given, V):
            found.add(given.number)
        elif isinstance(given, (tuple, list)):
            for x in given:
                visit(x)

    visit(step.args)
    return found


def _renumbered(step: Step, gone: int) -> Step:
    def visit(given: Any) -> Any:
        if isinstance(given, V):
            return V(given.number - (given.number > gone))
        return type(given)(map(visit, given)) if isinstance(given, (tuple, list)) else given

    return replace(step, args=visit(step.args))


# ------------------------------------------------------------------------------------------------------- generating


def generate(seed: int, *, reductions: bool = False) -> Program:
    """A program that eager runs; the same for the same seed. With `reductions` it has products and sums among its steps."""
    if reductions:
        return _Generator(random.Random(seed), KINDS + REDUCTIONS, (torch.float32,)).program()
    return _Generator(random.Random(seed), KINDS, DTYPES).program()


class _Generator:
    """Makes steps and runs each in eager at once, so that it knows the values that it chooses from."""

    def __init__(self, rng: random.Random, kinds: Sequence[Kind], dtypes: Sequence[torch.dtype]) -> None:
        self.rng = rng
        self.kinds = kinds
        self.dtypes = dtypes

    def program(self) -> Program:
        rng = self.rng
        dtype = rng.choice(self.dtypes)
        inputs = tuple((rng.choice(SHAPES), dtype) for _ in range(rng.randint(1, 3)))
        program = Program(inputs, rng.random() < 0.1, (), ())
        self.values: list[Any] = program.make_inputs()
        self.inputs = program.count
        steps: list[Step] = []
        wanted = rng.randint(3, 12)
        while len(steps) < wanted:
            step = rng.choice(self.kinds)(self)
            if step is None:
                continue
            try:
                self.values.append(self.run(step))
            except (RuntimeError, IndexError, NotImplementedError):
                continue
            steps.append(step)
        tensors = [i for i, value in enumerate(self.values) if isinstance(value, torch.Tensor)]
        returned = tuple(rng.choice(tensors) for _ in range(rng.randint(1, 3)))
        return replace(program, steps=tuple(steps), returned=returned)

    def run(self, step: Step) -> Any:
        args = _filled(step.args, self.values)
        return getattr(args[0], step.target)(*args[1:]) if isinstance(step.target, str) else step.target(*args)

    def value(self, fits: Callable[[torch.Tensor], bool] = lambda x: x.dim() > 0 and x.numel() > 0) -> V | None:
        """A value, a late one more often than an early one."""
        found = [i for i, x in enumerate(self.values) if isinstance(x, torch.Tensor) and fits(x)]
        return V(max(self.rng.choice(found), self.rng.choice(found))) if found else None

    def tensor(self, value: V) -> torch.Tensor:
        return self.values[value.number]

    def writable(self) -> V | None:
        return self.value(lambda x: x.dim() > 0 and 0 not in x.stride() and x.numel() > 0)

    def apart_from(self, target: V, shape: Any = None) -> V | None:
        """A value of the same dtype and shape that does not share the memory of another one."""
        x = self.tensor(target)
        shape = x.shape if shape is None else shape
        home = x.untyped_storage().data_ptr()
        return self.value(lambda y: y.dtype == x.dtype and y.shape == shape and y.untyped_storage().data_ptr() != home)


def _view(g: _Generator) -> Step | None:
    source = g.value()
    if source is None:
        return None
    x = g.tensor(source)
    dim = g.rng.randrange(x.dim())
    size = x.shape[dim]
    start = g.rng.randrange(size)
    kind = g.rng.choice(("select", "slice", "slice", "transpose", "diagonal", "view", "dtype", "unsqueeze", "strided"))
    if kind == "select":
        return Step("select", (source, dim, start))
    if kind == "slice":
        end, step = g.rng.randint(start + 1, size + 1), g.rng.choice((1, 1, 2))
        return Step(aten.slice.Tensor, (source, dim, start, end, step))
    if kind == "transpose":
        return Step("transpose", (source, dim, g.rng.randrange(x.dim())))
    if kind == "diagonal" and x.dim() >= 2:
        return Step("diagonal", (source, g.rng.randint(-1, 1)))
    if kind == "view":
        return Step("view", (source, (-1,)))
    if kind == "dtype" and x.dtype in (torch.float32, torch.int32):
        return Step("view", (source, torch.int32 if x.dtype is torch.float32 else torch.float32))
    if kind == "strided" and source.number < g.inputs and x._base is None:
        return Step("as_strided", (source, (2, 2), (3, 1), g.rng.randint(0, 1)))
    return Step("unsqueeze", (source, dim))


def _write(g: _Generator) -> Step | None:
    target = g.writable()
    if target is None:
        return None
    x = g.tensor(target)
    dim = g.rng.randrange(x.dim())
    kind = g.rng.choice(
        ("copy_", "copy_", "fill_", "add_", "mul_", "masked_fill_", "index", "index_fill_", "self", "op")
    )
    if kind in ("fill_", "add_", "mul_"):
        return Step(kind, (target, g.rng.randint(1, 3)))
    if kind == "self":
        return Step("copy_", (target, target))
    if kind == "index_fill_":
        return Step(aten.index_fill_.int_Scalar, (target, dim, _some_rows(g, x.shape[dim]), g.rng.randint(1, 5)))
    if kind == "masked_fill_":
        mask = g.value(lambda y: y.shape == x.shape and y.dtype is torch.bool)
        return Step("masked_fill_", (target, mask, 7)) if mask is not None else Step("gt", (target, 0))
    if kind == "op":
        other = g.apart_from(target)
        return Step(raise_by._opoverload, (target, other)) if other is not None else None
    if kind == "index":
        rows = _some_rows(g, x.shape[0])
        value = g.apart_from(target, x.shape[1:])
        return Step(aten.index_put_.default, (target, [rows], value)) if value is not None else None
    other = g.apart_from(target)
    return Step("copy_", (target, other)) if other is not None else None


def _some_rows(g: _Generator, size: int) -> V:
    """Rows to write, as a value of the program: `arange`, which a step made."""
    found = g.value(lambda y: y.dtype is torch.int64 and y.dim() == 1 and y.numel() and int(y.max()) < size)
    return found if found is not None else V(-1)


def _rows(g: _Generator) -> Step:
    start = g.rng.randint(0, 1)
    return Step(aten.arange.start, (start, start + g.rng.randint(1, 2)))


def _scatter(g: _Generator) -> Step | None:
    target = g.value()
    if target is None:
        return None
    x = g.tensor(target)
    dim = g.rng.randrange(x.dim())
    kind = g.rng.choice(("select", "slice", "diagonal", "index", "own"))
    if kind == "own":  # puts a part where it is
        part = g.value(lambda y: y.dtype == x.dtype and y.shape == x.shape[1:])
        return Step(torch.select_scatter, (target, part, 0, 0)) if part is not None else None
    if kind == "index":
        value = g.value(lambda y: y.dtype == x.dtype and y.shape == x.shape[1:])
        put = (target, [_some_rows(g, x.shape[0])], value, g.rng.random() < 0.3)
        return Step(aten.index_put.default, put) if value is not None else None
    at = g.rng.randrange(x.shape[dim])
    view = {
        "select": lambda: x.select(dim, at),
        "slice": lambda: aten.slice(x, dim, at, x.shape[dim]),
        "diagonal": lambda: x.diagonal() if x.dim() > 1 else x,
    }[kind]()
    value = g.value(lambda y: y.dtype == x.dtype and y.shape == view.shape)
    if value is None:
        return None
    if kind == "select":
        return Step(torch.select_scatter, (target, value, dim, at))
    if kind == "slice":
        return Step(torch.slice_scatter, (target, value, dim, at, x.shape[dim]))
    return Step(torch.diagonal_scatter, (target, value)) if x.dim() > 1 else None


def _compute(g: _Generator) -> Step | None:
    source = g.value()
    if source is None:
        return None
    x = g.tensor(source)
    kind = g.rng.choice(("clone", "clone", "mul", "add", "zeros", "foreach"))
    if kind == "clone":
        return Step("clone", (source,))
    if kind == "zeros":
        return Step(torch.zeros_like, (source,))
    other = g.value(lambda y: y.dtype == x.dtype and y.shape == x.shape)
    assert other is not None
    if kind == "foreach":
        target = g.writable()
        by = g.apart_from(target) if target is not None else None
        return Step(aten._foreach_add_.List, ([target], [by])) if by is not None else None
    return Step(kind, (source, other))


def _reduce(g: _Generator) -> Step | None:
    """What is read in loops of another shape, or by no loop at all."""
    source = g.value(lambda x: x.dim() > 0 and x.is_floating_point() and x.numel() > 0)
    if source is None:
        return None
    x = g.tensor(source)
    dim, kind = g.rng.randrange(x.dim()), g.rng.choice(("softmax", "sum", "matmul", "scaled", "add"))
    if kind == "softmax":
        return Step("softmax", (source, dim))
    if kind == "sum":
        return Step("sum", (source, dim, g.rng.random() < 0.6))
    if kind == "matmul":
        return Step("matmul", (source, source)) if x.dim() == 2 and x.shape[0] == x.shape[1] else None
    other = g.apart_from(source)
    return Step("add", (source, other)) if kind == "add" and other is not None else Step("mul", (source, 0.25))


Kind = Callable[[_Generator], Step | None]
KINDS: tuple[Kind, ...] = (*(_view,) * 3, *(_write,) * 4, *(_scatter,) * 2, *(_compute,) * 2, _rows)
REDUCTIONS: tuple[Kind, ...] = (_reduce,) * 10
