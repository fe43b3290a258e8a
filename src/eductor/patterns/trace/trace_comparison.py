"""Derives the pattern that two traces of one function have in common.

What is the same in both is compared as it is. What differs must follow from what was different: a free number, a size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from eductor.compat import OpOverload
from eductor.errors import BadPattern
from eductor.graph import Bound, bind, value_of
from eductor.graph.values.meta import hint_of, results_of
from eductor.patterns.compile.steps import kind_of
from eductor.patterns.language.pattern import Computed, Const, Op, Outputs, Pattern, Var
from eductor.patterns.match.call_reading import call_parameters
from eductor.patterns.match.constants import nearly, same_constant
from eductor.patterns.match.transparent import is_idle

TRACED = (torch.Tensor, torch.SymInt, torch.SymFloat)
"""What is an input of a trace; other values are in it as constants."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced function, the names of its inputs, and the values that they had."""

    module: GraphModule
    names: tuple[str, ...]
    values: list[Any]

    def calls(self) -> list[Any]:
        """The targets of the calls, in order."""
        return [n.target for n in self.module.graph.nodes if n.op == "call_function"]

    def placeholders(self) -> dict[Node, str]:
        """The inputs that are nodes, by their names; numbers are in the trace as constants."""
        names = [n for n, v in zip(self.names, self.values, strict=True) if isinstance(v, TRACED)]
        return dict(zip(self.module.graph.find_nodes(op="placeholder"), names, strict=True))


def explained(
    first: Trace,
    second: Trace,
    names: Sequence[str],
    free: Mapping[str, Any],
    *,
    exclusive: Collection[str] = (),
    any_kind: bool = False,
) -> tuple[Outputs, list[str]]:
    """The pattern that both traces are instances of, and the names that it does not mention."""
    reader = _Reader(first, second, free, exclusive, any_kind=any_kind)
    patterns = tuple(
        reader.pair(a, b) for a, b in zip(results_of(first.module), results_of(second.module), strict=True)
    )
    return Outputs(patterns), [n for n in names if n not in reader.known]


class _Reader:
    """Reads two traces side by side."""

    def __init__(
        self, first: Trace, second: Trace, free: Mapping[str, Any], exclusive: Collection[str], *, any_kind: bool
    ) -> None:
        self._first = first
        self._second = second
        self._free = dict(free)
        self._exclusive = exclusive
        self._any_kind = any_kind
        self._inputs = first.placeholders()
        self._made: dict[Node, Any] = {}
        self._symbols, self._other_symbols = _symbols(first), _symbols(second)
        self._atoms = _atoms(first, second)
        self._others = _others(first, second)
        self.known: set[str] = set()
        self._device = next((v.device for v in first.values if isinstance(v, torch.Tensor)), None)
        self._tensor = next(
            (n for n, v in zip(first.names, first.values, strict=True) if isinstance(v, torch.Tensor)), ""
        )
        steps = (list(t.module.graph.nodes) for t in (first, second))
        self._twins = dict(zip(*steps, strict=False))
        if first.calls() != second.calls():
            raise BadPattern(
                "the search function makes other calls for other numbers or sizes: register it for each case."
            )

    def pair(self, a: Any, b: Any) -> Any:
        """The pattern of a value that is `a` in the first trace and `b` in the second."""
        if isinstance(a, Node):
            return self._node(a)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
            return [self.pair(x, y) for x, y in zip(a, b, strict=True)]
        if isinstance(a, torch.device) and a == self._device:
            return Computed(f"{self._tensor}.device")
        if isinstance(a, torch.dtype) and a != b:
            return self._dtype(a, b)
        return self._constant(a, b)

    def _dtype(self, a: torch.dtype, b: Any) -> Computed:
        """The dtype of the input that had the given dtypes in the two traces."""
        pairs = zip(self._first.names, self._first.values, self._second.values, strict=True)
        for name, here, there in pairs:
            if isinstance(here, torch.Tensor) and (here.dtype, there.dtype) == (a, b):
                return Computed(f"{name}.dtype")
        raise BadPattern(f"a dtype of the search function is {a} in one trace and {b} in another.")

    def _node(self, node: Node) -> Any:
        if node not in self._made:
            self._made[node] = self._read(node)
        return self._made[node]

    def _read(self, node: Node) -> Any:
        value = value_of(node)
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self._size(value, value_of(self._twins[node]))
        if node in self._inputs:
            name = self._inputs[node]
            self.known.add(name)
            return self._var(name)
        if node.op == "get_attr":
            raise BadPattern("the search function creates a tensor: make it an input.")
        operand = node.args[0] if node.args else None
        if isinstance(operand, Node) and is_idle(node, operand):
            return self._node(operand)
        twin = self._twins[node]
        (given, named), (others, others_named) = (_arguments(n, node, twin) for n in (node, twin))
        args = tuple(self.pair(a, b) for a, b in zip(given, others, strict=True))
        kwargs = {k: self.pair(v, others_named[k]) for k, v in named.items()}
        target = node.target.overloadpacket if isinstance(node.target, OpOverload) else node.target
        return Op((target,), args, kwargs)

    def _var(self, name: str) -> Var | Const:
        at = self._first.names.index(name)
        given = self._first.values[at]
        if not isinstance(given, torch.Tensor):
            return Const(name)
        pairs = zip(given.shape, self._second.values[at].shape, strict=True)
        shape = tuple(self._relation(f"{name}.shape[{i}]", *pair) for i, pair in enumerate(pairs))
        kind = "" if self._any_kind else kind_of(given)
        return Var(name, exclusive=name in self._exclusive, kind=kind, shape=shape)

    def _relation(self, own: str, a: Any, b: Any) -> int | str | None:
        """To what a size of an input is equal in both traces: a number, another input's size, or nothing but itself."""
        expression = a.node.expr if isinstance(a, torch.SymInt) else sympy.Integer(a)
        if expression.free_symbols:
            text = _text(expression, self._symbols)
        elif hint_of(a) == hint_of(b):
            return int(hint_of(a))
        else:
            text = next(name for name, *sizes in self._atoms if sizes == [hint_of(a), hint_of(b)])
        return None if text == own else text

    # ------------------------------------------------------------------------------------------------ numbers and sizes

    def _constant(self, a: Any, b: Any) -> Any:
        for name, value in self._free.items():
            if type(a) is type(value) and a == value:
                self.known.add(name)
                return Const(name)
        if same_constant(a, b):
            return a
        for name, here, there in self._others:
            if (type(a), a, type(b), b) == (type(here), here, type(there), there):
                self.known.add(name)
                return Const(name)
        for text, here, there in _explanations(self._atoms):
            if nearly(a, here) and nearly(b, there):
                return self._named(text)
        raise BadPattern(
            f"a constant of the search function is {a} in one trace and {b} in another, which follows from none of its "
            "numbers and sizes in a simple way: make it a parameter."
        )

    def _named(self, text: str) -> Pattern:
        number = text.removeprefix("1 / ")
        if number.isidentifier():
            self.known.add(number)
            return Const(number, inverted=number != text)
        return Computed(text)

    def _size(self, value: Any, other: Any) -> Any:
        expression = value.node.expr
        name = next((n for n, v in zip(self._first.names, self._first.values, strict=True) if v is value), None)
        if not name and not expression.free_symbols:
            return self._constant(hint_of(value), hint_of(other))
        text = name or _text(expression, self._symbols)
        if not name and text != _text(other.node.expr, self._other_symbols):
            raise BadPattern(
                "a size of the search function is another expression for other values: register it for each."
            )
        if text.isidentifier():
            self.known.add(text)
            return Const(text)
        return Computed(text)


def _arguments(node: Node, one: Node, other: Node) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call; all of them, where one trace has an argument that has its default in the other."""
    if len(one.args) == len(other.args) and one.kwargs.keys() == other.kwargs.keys():
        return node.args, node.kwargs
    bound = bind(node)
    if not isinstance(bound, Bound):
        raise BadPattern(f"a call of the search function cannot be read: {bound.reason}.")
    names = call_parameters(bound.op).names
    positional = call_parameters(bound.op).positional
    return [bound[n] for n in names[:positional]], {n: bound[n] for n in names[positional:]}


def _others(first: Trace, second: Trace) -> list[tuple[str, Any, Any]]:
    """Whole numbers and flags that were different in the two traces."""
    pairs = zip(first.names, map(hint_of, first.values), map(hint_of, second.values), strict=True)
    return [(name, a, b) for name, a, b in pairs if isinstance(a, int) and isinstance(b, int) and a != b]


def _symbols(trace: Trace) -> dict[sympy.Symbol, str]:
    """Of which input each symbol is a size."""
    found: dict[sympy.Symbol, str] = {}
    for name, value in zip(trace.names, trace.values, strict=True):
        if isinstance(value, (torch.SymInt, torch.SymFloat)) and isinstance(value.node.expr, sympy.Symbol):
            found.setdefault(value.node.expr, name)
        for i, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                found.setdefault(size.node.expr, f"{name}.shape[{i}]")
    return found


Atom = tuple[str, float, float]


def _atoms(first: Trace, second: Trace) -> list[Atom]:
    """What was different in the two traces, by name: numbers, and sizes that are no symbols any more."""
    found: list[Atom] = []
    for name, a, b in zip(first.names, first.values, second.values, strict=True):
        if isinstance(a, float) and isinstance(b, float):
            found.append((name, a, b))
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)):
                sizes = [hint_of(s) for s in (m, n)]
                if sizes[0] != sizes[1] and not any(atom[1:] == tuple(sizes) for atom in found):
                    found.append((f"{name}.shape[{i}]", sizes[0], sizes[1]))
    return found


_FORMS: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("{}", lambda v: v),
    ("1 / {}", lambda v: 1 / v),
    ("-{}", lambda v: -v),
    ("{} ** 0.5", lambda v: math.sqrt(v)),
    ("{} ** -0.5", lambda v: 1 / math.sqrt(v)),
    ("1 - {}", lambda v: 1 - v),
    ("1 / (1 - {})", lambda v: 1 / (1 - v)),
    ("{0} * {0}", lambda v: v * v),
)


def _explanations(atoms: list[Atom]) -> list[Atom]:
    """Simple expressions of what was different, with their values in both traces."""
    found = [
        (text.format(name), form(a), form(b))
        for name, a, b in atoms
        for text, form in _FORMS
        if a > 0 and b > 0 and a != 1 != b
    ]
    sizes = [atom for atom in atoms if ".shape" in atom[0]]
    found += [(f"{x[0]} * {y[0]}", x[1] * y[1], x[2] * y[2]) for x in sizes for y in sizes]
    return found


def _text(expression: Any, symbols: Mapping[sympy.Symbol, str]) -> str:
    """A symbolic size as an expression of the inputs' shapes."""
    if isinstance(expression, sympy.Symbol) and expression in symbols:
        return symbols[expression]
    if isinstance(expression, (sympy.Integer, sympy.Float, sympy.Rational)):
        return str(float(expression)) if not isinstance(expression, sympy.Integer) else str(int(expression))
    parts = [_text(a, symbols) for a in expression.args]
    name = type(expression).__name__
    if isinstance(expression, (sympy.Add, sympy.Mul)):
        return f"({(' + ' if isinstance(expression, sympy.Add) else ' * ').join(sorted(parts))})"
    sign = _FUNCTIONS.get(name)
    if sign is not None and len(parts) == 2:
        return f"({parts[0]} {sign} {parts[1]})"
    if name == "ToFloat":
        return parts[0]
    raise BadPattern(f"a size of the search function is {expression}, which a pattern cannot compute.")


_FUNCTIONS = {
    "Pow": "**",
    "FloatPow": "**",
    "PowByNatural": "**",
    "FloorDiv": "//",
    "CleanDiv": "//",
    "IntTrueDiv": "/",
    "FloatTrueDiv": "/",
    "Mod": "%",
    "PythonMod": "%",
}
