"""Straight-line programs as data: printed as Python, run in eager, built as the graph that would be captured of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx import Graph, GraphModule, Node

from eductor.compat import FakeTensorMode, ShapeEnv
from eductor.graph.text.printer import literal
from eductor.graph.values.evaluate import propagate

BLOCKS = {
    "no_grad": "torch.no_grad()",
    "autocast": "torch.autocast('cpu', dtype=torch.bfloat16)",
    "wide": "torch.autocast('cpu', enabled=False)",
}
END = "end"
OPERATORS = {"+": operator.add, "*": operator.mul, "-": operator.sub}
IN_PLACE = {"+=": operator.iadd, "*=": operator.imul}
NARROW = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Name:
    """A variable of a program."""

    text: str


@dataclass(frozen=True)
class Step:
    """One line: a call, or the beginning or end of a block.

    The target is the path of a function (`torch.cat`, `F.relu`), a method (`.split`), an operator (`+`, `+=`, `[]`,
    `[]=`), `getattr`, a block (`no_grad`, `autocast`) or its `end`.
    """

    result: str
    target: str
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)

    def names(self) -> Iterator[str]:
        """The variables that it reads."""
        return names_in((self.args, self.kwargs))


@dataclass(frozen=True)
class Input:
    """A tensor that a program is called with, or that its module holds; a `None` among its sizes is the batch."""

    name: str
    shape: tuple
    dtype: torch.dtype = torch.float32
    requires_grad: bool = False
    is_leaf: bool = True
    """Whether it is handed over as the leaf itself, or as a copy of it, which may be written."""
    layout: str = "contiguous"
    """Or `transposed`, or `sliced`: every second element of its last dimension."""
    held: bool = False
    """Whether it is a parameter of the module."""

    def make(self, batch: int) -> torch.Tensor:
        """Contents that depend on the name alone, so that they stay where others are left out."""
        generator = torch.Generator().manual_seed(int(self.name[1:]))
        shape = [batch if n is None else n for n in self.shape]
        if self.layout == "transposed":
            shape = shape[::-1]
        elif self.layout == "sliced":
            shape[-1] *= 2
        if self.dtype.is_floating_point:
            made = torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype)
        else:
            made = torch.randint(-3, 4, shape, generator=generator, dtype=self.dtype)
        if self.layout == "transposed":
            made = made.permute(*reversed(range(made.dim())))
        elif self.layout == "sliced":
            made = made[..., ::2]
        return made.requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class Program:
    """Inputs, lines, and the variables that are returned. `batches` are the sizes of the batch, the first is captured."""

    inputs: tuple
    steps: tuple
    outputs: tuple
    batches: tuple = (4,)
    grad: bool = True

    @property
    def dynamic(self) -> bool:
        return len(self.batches) > 1

    def source(self) -> str:
        """The program as a Python function."""
        head = ", ".join(["self", *(i.name for i in self.inputs if not i.held)])
        lines = [f"def forward({head}):"]
        lines += [f"    {i.name} = self.{i.name}" for i in self.inputs if i.held]
        depth = 1
        for step, following in zip(self.steps, [*self.steps[1:], None], strict=True):
            if step.target == END:
                depth -= 1
                continue
            lines.append("    " * depth + line_of(step))
            if step.target in BLOCKS:
                depth += 1
                if following is not None and following.target == END:
                    lines.append("    " * depth + "pass")
        return "\n".join([*lines, f"    return ({''.join(f'{name}, ' for name in self.outputs)})"])

    def __str__(self) -> str:
        facts = [f"batches {self.batches}" if self.dynamic else "", "" if self.grad else "no gradients"]
        inputs = [f"# {i}" for i in self.inputs]
        return "\n".join([*inputs, f"# {', '.join(filter(None, facts))}", self.source()])

    def function(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {"torch": torch, "F": F, "operator": operator}
        exec(compile(self.source(), "<program>", "exec"), scope)
        return scope["forward"]

    def used(self) -> Program:
        """The same program without the inputs that nobody reads."""
        read = {name for step in self.steps for name in step.names()} | set(self.outputs)
        kept = tuple(i for i in self.inputs if i.name in read)
        return replace(self, inputs=kept) if len(kept) < len(self.inputs) else self

    def widened(self) -> Program:
        """The same mathematics in float64."""
        inputs = [replace(i, dtype=torch.float64) if i.dtype in NARROW else i for i in self.inputs]
        steps = [_widened(step) for step in self.steps]
        return replace(self, inputs=tuple(inputs), steps=tuple(steps))

    def narrowest(self) -> torch.dtype:
        """The dtype that rounds most among those that it computes in."""
        rounds = any(step.target == "autocast" for step in self.steps) or any(
            i.dtype is torch.bfloat16 for i in self.inputs
        )
        return torch.bfloat16 if rounds or any(torch.bfloat16 in step.args for step in self.steps) else torch.float32

    def graph_module(self, module: nn.Module, fakes: list) -> GraphModule:
        """What Dynamo would capture, with fake values; `module` holds the parameters."""
        graph = Graph()
        env: dict[str, Node] = {}
        for given in sorted(self.inputs, key=lambda i: i.held):
            env[given.name] = graph.get_attr(given.name) if given.held else graph.placeholder(given.name)
        open_blocks: list[tuple[str, Any]] = []
        for step in self.steps:
            node = _as_node(graph, step, env, open_blocks, self.grad)
            if step.result:
                env[step.result] = node
        graph.output(tuple(env[name] for name in self.outputs))
        made = GraphModule(module, graph)
        with torch.set_grad_enabled(self.grad):
            propagate(made, fakes)
        return made

    def fakes(self, tensors: dict) -> tuple[list, ShapeEnv | None]:
        """Fake values of the inputs; the batch is a symbol where the program is dynamic."""
        env = ShapeEnv() if self.dynamic else None
        mode = FakeTensorMode(shape_env=env)
        return [self._fake(mode, i, tensors[i.name]) for i in self.inputs if not i.held], env

    def _fake(self, mode: FakeTensorMode, given: Input, tensor: torch.Tensor) -> torch.Tensor:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        if not self.dynamic:
            return mode.from_tensor(tensor, static_shapes=True)
        # DUCK: inputs with the batch among their sizes share its symbol, as in a capture.
        kinds = [DimDynamic.DUCK if n is None else DimDynamic.STATIC for n in given.shape]
        return mode.from_tensor(
            tensor, symbolic_context=StatelessSymbolicContext(kinds), source=ConstantSource(given.name)
        )


class World:
    """The variables of a program while it is run line by line."""

    def __init__(self, variables: dict) -> None:
        self.variables = variables

    def perform(self, step: Step) -> Any:
        """Runs a line that is no block, and keeps its result."""
        args, kwargs = mapped((step.args, step.kwargs), lambda name: self.variables[name.text])
        value = perform(step.target, args, kwargs)
        if step.result:
            self.variables[step.result] = value
        return value


def perform(target: str, args: Any, kwargs: dict) -> Any:
    if target.startswith("."):
        return getattr(args[0], target[1:])(*args[1:], **kwargs)
    return function_of(target)(*args, **kwargs)


def block(kind: str) -> Any:
    return torch.no_grad() if kind == "no_grad" else torch.autocast("cpu", dtype=torch.bfloat16)


def run_lines(steps: Iterable[Step], world: World) -> None:
    """Runs lines one by one, blocks included."""
    with ExitStack() as everything:
        opened: list[ExitStack] = []
        for step in steps:
            if step.target in BLOCKS:
                opened.append(everything.enter_context(ExitStack()))
                opened[-1].enter_context(block(step.target))
            elif step.target == END:
                opened.pop().close()
            else:
                world.perform(step)


def function_of(target: str) -> Callable[..., Any]:
    special = {"[]": operator.getitem, "[]=": operator.setitem, "getattr": getattr, **OPERATORS, **IN_PLACE}
    if target in special:
        return special[target]
    head, *rest = target.split(".")
    found: Any = {"torch": torch, "F": F}[head]
    for part in rest:
        found = getattr(found, part)
    return found


def line_of(step: Step) -> str:
    """A line of Python."""
    if step.target in BLOCKS:
        return f"with {BLOCKS[step.target]}:"
    args = [spelled(a) for a in step.args]
    if step.target == "[]=":
        return f"{args[0]}[{_index(step.args[1])}] = {args[2]}"
    if step.target == "[]":
        return f"{step.result} = {args[0]}[{_index(step.args[1])}]"
    if step.target == "getattr":
        return f"{step.result} = {args[0]}.{step.args[1]}"
    if step.target in OPERATORS:
        return f"{step.result} = {args[0]} {step.target} {args[1]}"
    if step.target in IN_PLACE:
        return f"{step.result} = {function_of(step.target).__module__.strip('_')}.{function_of(step.target).__name__}({args[0]}, {args[1]})"
    callee = step.target
    if step.target.startswith("."):
        callee, args = args[0] + step.target, args[1:]
    args += [f"{k}={spelled(v)}" for k, v in step.kwargs.items()]
    return (f"{step.result} = " if step.result else "") + f"{callee}({', '.join(args)})"


def spelled(value: Any) -> str:
    if isinstance(value, Name):
        return value.text
    if isinstance(value, (list, tuple)):
        inner = ", ".join(spelled(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
    return literal(value)


def _index(index: Any) -> str:
    if isinstance(index, tuple):
        return ", ".join(map(_index, index))
    if isinstance(index, slice):
        start, stop, step = ("" if v is None else spelled(v) for v in (index.start, index.stop, index.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return spelled(index)


def names_in(value: Any) -> Iterator[str]:
    if isinstance(value, Name):
        yield value.text
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from names_in(part)
    elif isinstance(value, dict):
        yield from names_in(list(value.values()))
    elif isinstance(value, slice):
        yield from names_in([value.start, value.stop, value.step])


def mapped(value: Any, put: Callable[[Name], Any]) -> Any:
    """Arguments with something in the place of their variables."""
    if isinstance(value, Name):
        return put(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(v, put) for v in value)
    if isinstance(value, dict):
        return {k: mapped(v, put) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*mapped([value.start, value.stop, value.step], put))
    return value


def _as_node(graph: Graph, step: Step, env: dict, open_blocks: list, grad: bool) -> Node:
    """A line in the spelling of Dynamo."""
    if step.target in BLOCKS:
        if step.target == "no_grad":
            node = graph.call_function(torch._C._set_grad_enabled, (False,))
        else:
            node = graph.call_function(_enter_autocast, ("cpu", torch.bfloat16, True, None))
        open_blocks.append((step.target, node))
        return node
    if step.target == END:
        kind, node = open_blocks.pop()
        if kind == "autocast":
            return graph.call_function(_exit_autocast, (node,))
        enabled = grad and all(kind != "no_grad" for kind, _ in open_blocks)
        return graph.call_function(torch._C._set_grad_enabled, (enabled,))
    args, kwargs = mapped((step.args, step.kwargs), lambda name: env[name.text])
    if step.target.startswith("."):
        return graph.call_method(step.target[1:], args, kwargs)
    return graph.call_function(function_of(step.target), args, kwargs)


def _widened(step: Step) -> Step:
    """A line in float64: an autocast block becomes one that does nothing, narrow dtypes become wide."""
    if step.target == "autocast":
        return replace(step, target="wide")
    args, kwargs = _wide((step.args, step.kwargs))
    # A conversion to another dtype is a copy, and stays one where both are float64.
    return replace(step, args=args, kwargs={**kwargs, "copy": True} if step.target == ".to" else kwargs)


def _wide(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_wide, value))
    if isinstance(value, dict):
        return {k: _wide(v) for k, v in value.items()}
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def volume(shape: Iterable[int]) -> int:
    return math.prod(shape)
