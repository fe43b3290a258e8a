"""Constants of a pattern against those of a graph: by type, with dims counted from the front; what follows from names."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import sympy
import torch
from torch.fx import Node

from eductor.errors import BadPattern
from eductor.graph import No, known_equal, tensor_of, value_of
from eductor.graph.text.symbolic_sizes import evaluate
from eductor.patterns.compile.forms import Swap
from eductor.patterns.language.pattern import names_of, spelled
from eductor.patterns.match.call_reading import MISSING, Reading

aten = torch.ops.aten
_DIMS = frozenset(("dim", "dims", "dim0", "dim1", "start_dim", "end_dim", "axis"))
_REDUCTIONS = frozenset(
    getattr(aten, name)
    for name in (
        *("sum", "mean", "amax", "amin", "var", "std", "var_mean", "std_mean", "logsumexp", "all", "any", "prod"),
        *("norm", "linalg_vector_norm", "nansum", "nanmean", "count_nonzero", "squeeze"),
    )
)
"""Those for which the order of several dims does not matter."""
_NUMBER = (int, float, complex)


def has_constant(
    reading: Reading, place: tuple[int | str, ...], want: Any, *, near: bool = False
) -> Literal[True] | No:
    """Whether an argument of a call is the constant that a pattern wants there.

    `near` overlooks the last bit of a number, which an inverse may have otherwise.
    """
    got = argument(reading, place)
    name = name_of(reading, place)
    if got is MISSING:
        return No(f"it has no argument {name}", reading.node)
    if isinstance(got, Node) and isinstance(value_of(got), torch.Tensor):
        return No(f"{name} is the tensor {got.name}, the pattern wants {shown(want)}", reading.node)
    got = plain(got)
    if isinstance(want, Swap) and reading.rank is not None:
        if got == want.of(reading.rank) and want.of(reading.rank) != list(range(reading.rank)):
            return True
        return No(f"{name} is {got}, the pattern exchanges {want.a} and {want.b}", reading.node)
    rank = reading.rank if name in _DIMS else None
    if rank is not None and _same_dims(got, want, rank, ordered=reading.key not in _REDUCTIONS):
        return True
    if name == "size" and isinstance(want, (list, tuple)):
        same = _same_sizes(reading, got, want)
    elif name == "size" and len(place) == 2 and want == -1:  # among others, which are free
        sizes = plain(argument(reading, place[:1]))
        same = _same_sizes(reading, sizes, [want if i == place[1] else size for i, size in enumerate(sizes)])
    else:
        same = rank is None and (same_constant(got, want, mixed=_is_floating(reading)) or (near and nearly(got, want)))
    return True if same else No(f"{name} is {shown(got)}, the pattern wants {shown(want)}", reading.node)


def argument(reading: Reading, place: tuple[int | str, ...]) -> Any:
    """The argument of a call at a place; MISSING if there is no such place."""
    value = reading.at(place[0])
    for i in place[1:]:
        if not isinstance(value, (list, tuple)) or not isinstance(i, int) or i >= len(value):
            return MISSING
        value = value[i]
    return value


def name_of(reading: Reading, place: tuple[int | str, ...]) -> str:
    """The schema's name of an argument; of an element of a list, the list's."""
    i = reading.parameters.index(place[0])
    return reading.parameters.names[i] if i >= 0 else str(place[0])


def plain(value: Any) -> Any:
    """A value in which each node is replaced by the size that it holds."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value_of(value) if isinstance(value, Node) else value


def same_constant(a: Any, b: Any, *, mixed: bool = False) -> bool:
    """Whether two constants are the same; with `mixed`, 2 is 2.0, as it is where both become one dtype."""
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        both = isinstance(a, (list, tuple)) and isinstance(b, (list, tuple))
        return both and len(a) == len(b) and all(same_constant(x, y, mixed=mixed) for x, y in zip(a, b, strict=True))
    if isinstance(a, (torch.SymInt, torch.SymFloat)) or isinstance(b, (torch.SymInt, torch.SymFloat)):
        return a is not None and b is not None and (known_equal(a, b) or _same_roots(a, b))
    if type(a) is not type(b):
        loose = mixed and all(isinstance(x, _NUMBER) and not isinstance(x, bool) for x in (a, b))
        return loose and bool(a == b) and _sign(a) == _sign(b)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


def _same_roots(a: Any, b: Any) -> bool:
    """Whether two symbolic numbers are the same but for how powers and quotients of sizes are spelled."""
    if not isinstance(a, torch.SymFloat) or not isinstance(b, torch.SymFloat):
        return False
    return bool(_arithmetic(a.node.expr) == _arithmetic(b.node.expr))


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "OpaqueUnaryFn_sqrt": lambda x: x ** sympy.Rational(1, 2),
    "FloatPow": lambda x, y: x ** sympy.nsimplify(y),
    "FloatTrueDiv": lambda x, y: x / y,
    "IntTrueDiv": lambda x, y: x / y,
    "ToFloat": lambda x: x,
}


def _arithmetic(expression: sympy.Expr) -> sympy.Expr:
    """A symbolic expression in plain arithmetic."""
    parts = [_arithmetic(part) for part in expression.args]
    plain = _ARITHMETIC.get(type(expression).__name__)
    if plain is not None:
        return plain(*parts)
    return expression.func(*parts) if parts else expression


def _sign(number: Any) -> float:
    return 1.0 if isinstance(number, complex) else math.copysign(1, number)


def nearly(a: Any, b: Any) -> bool:
    """Whether two numbers are the same but for the last bit, as computed ones are."""
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    return numbers and math.isclose(a, b, rel_tol=4e-16)


def _same_dims(got: Any, want: Any, rank: int, *, ordered: bool) -> bool:
    rank = max(rank, 1)
    if isinstance(got, list) and type(want) is int:
        want = [want]
    if type(got) is int and type(want) is int:
        return -rank <= want < rank and got % rank == want % rank
    lists = isinstance(got, list) and isinstance(want, (list, tuple))
    if not lists or not all(type(d) is int for d in (*got, *want)):
        return got is None and want is None
    if not all(-rank <= d < rank for d in want):
        return False
    here, there = [d % rank for d in got], [d % rank for d in want]
    return here == there if ordered else sorted(here) == sorted(there)


def _same_sizes(reading: Reading, got: list[Any], want: Any) -> bool:
    """A size of -1 in a view follows from the others; in an expansion it stays what it was."""
    if not isinstance(got, list) or len(got) != len(want):
        return False
    inner = tensor_of(reading.values[0])
    kept = list(inner.shape) if reading.key is aten.expand and inner is not None else None
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if type(b) is int and b == -1:
            at = i - len(got) + len(kept) if kept is not None else None
            if kept is not None and at is not None and not (at >= 0 and known_equal(a, kept[at])):
                return False
        elif not same_constant(a, b):
            return False
    return True


def _is_floating(reading: Reading) -> bool:
    here, there = tensor_of(reading.node), tensor_of(reading.values[0]) if reading.values else None
    return all(t is not None and t.dtype.is_floating_point for t in (here, there))


def shown(value: Any) -> str:
    """A value of a graph or of a pattern, as a sentence has it."""
    if value is MISSING:
        return "missing"
    if isinstance(value, Node):
        return value.name
    return str(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else spelled(value)


# ----------------------------------------------------------------------------------------- what follows from names


def evaluated(expression: str, bindings: dict[str, Any]) -> Any:
    """What an expression of names, `x.shape[i]`, `x.dtype`, `x.device`, numbers and arithmetic gives."""
    try:
        known = {name: plain(bindings[name]) for name in names_of(expression) if name in bindings}
        return evaluate(_parsed(expression), known)
    except (TypeError, ArithmeticError, IndexError):  # a dimension that the tensor does not have, a division by zero
        return None
    except (ValueError, KeyError) as error:
        raise BadPattern(
            f"the expression {expression!r}: {error}. It may have names of the pattern, x.shape[i], x.dtype, x.device, "
            "numbers and arithmetic."
        ) from None


@functools.cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body
