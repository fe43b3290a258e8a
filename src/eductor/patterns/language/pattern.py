"""The pattern language: small expressions that describe what a rewrite replaces.

    op(aten.permute, op(aten.permute, var("x"), const("inner"), users=1), const("outer"))

An expression is a value. The same object used twice stands for one and the same node.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import FunctionType
from typing import Any, Literal, get_args

import torch

from eductor.compat import HigherOrderOperator, OpOverload, OpOverloadPacket
from eductor.errors import BadPattern
from eductor.graph.text.printer import literal, path_of
from eductor.pipeline.versions import source_hash

Tolerance = Literal["scale", "casts", "rank", "kinds"]
TOLERANCES: dict[Tolerance, str] = {
    "scale": "a division stands for the product with the inverse: `x / c`, `x * (1 / c)`, `x / sqrt(v)`, `x * rsqrt(v)`",
    "casts": "conversions between floating dtypes may stand anywhere, or nowhere",
    "rank": "a traced function is looked for with more or fewer leading dimensions, too, up to four in all",
    "kinds": "a traced function is looked for on elements of any kind: floating-point, complex, integers, flags",
}
"""What a pattern may be told to overlook."""
ROUNDING: frozenset[Tolerance] = frozenset(("scale", "casts"))
"""Those that change roundings, so that a pass that is exact cannot use them."""

ANY: Any = type("Any", (), {"__repr__": lambda self: "ANY"})()
"""`users=ANY`: the node may have other users; it stays if it has any."""

Users = int | None | Any


class Pattern:
    """An expression of the language."""

    __slots__ = ()

    def __str__(self) -> str:
        return spelled(self)


@dataclass(eq=False, slots=True, repr=False)
class Op(Pattern):
    """A call of one of the targets. Nobody edits it; to freeze it would double the time that stored patterns take to load."""

    targets: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    users: Users = None
    open: bool = False
    """Whether arguments that the pattern does not mention may be anything."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Var(Pattern):
    """Any tensor; with `anything`, any argument at all."""

    name: str
    where: Callable[[Any], Any] | None = None
    exclusive: bool = False
    anything: bool = False
    kind: str = ""
    """`float`, `int`, `bool` or `complex`: what its elements must be."""
    shape: tuple[int | str | None, ...] | None = None
    """What its sizes must be: a number, an expression of other names, or None where any will do."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Const(Pattern):
    """Any constant or size. With `inverted`, the name stands for the inverse of what is in the graph."""

    name: str
    where: Callable[[Any], Any] | None = None
    inverted: bool = False


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Computed(Pattern):
    """A value that follows from what the names stand for: `x.shape[0] * 2`."""

    expression: str
    inverted: bool = False


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class AnyOf(Pattern):
    """One of several patterns; the first that matches."""

    choices: tuple[Any, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class ListOf(Pattern):
    """A list, each element of which matches; names inside stand for lists."""

    element: Any
    partial: bool = False


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Repeated(Pattern):
    """All calls of this form that share the nodes with `users=ANY` in it; names inside stand for lists."""

    element: Op


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Outputs(Pattern):
    """Several results. `None` stands for a result that there is not: a gradient that nobody needs."""

    patterns: tuple[Any, ...] = field(default=())


def op(target: Any, *args: Any, users: Users = None, **kwargs: Any) -> Op:
    """A call. Arguments that are not mentioned must have their defaults; anything that is no pattern is compared.

    With `...` as the last argument, those that are not mentioned may be anything.
    The target is an operator (all its overloads, in every spelling) or one overload, a function, the name of a method
    that is no operator, a module class, or several of them. By default all `users` are inside the pattern; a number is
    an exact count, `ANY` is anybody.
    """
    targets = tuple(target) if isinstance(target, (list, tuple)) else (target,)
    for t in targets:
        if not callable(t) and not isinstance(t, str):
            raise BadPattern(f"op({t!r}, ...): a target is an operator, a function, a module class or a method's name.")
    if not targets:
        raise BadPattern("op([], ...): give at least one target.")
    if users is not None and users is not ANY and not (type(users) is int and users > 0):
        raise BadPattern(f"op(..., users={users!r}): it must be a number of 1 or more, or ANY.")
    is_open = bool(args) and args[-1] is ...
    return Op(targets, args[:-1] if is_open else args, dict(kwargs), users, is_open)


def var(
    name: str, where: Callable[[Any], Any] | None = None, *, exclusive: bool = False, anything: bool = False
) -> Var:
    """Any tensor. `where` asks its fake value. An `exclusive` one is another node than all other exclusive ones."""
    return Var(_name(name, "var"), where, exclusive, anything)


def const(name: str, where: Callable[[Any], Any] | None = None) -> Const:
    """Any constant, or size, for which `where` holds."""
    return Const(_name(name, "const"), where)


def computed(expression: str) -> Computed:
    """What an expression of the other names gives: `computed("x.shape[-1] ** -0.5")`."""
    try:
        names_of(expression)
    except SyntaxError as error:
        raise BadPattern(f"computed({expression!r}): it is no expression, {error.msg}.") from None
    return Computed(expression)


@functools.cache
def names_of(expression: str) -> tuple[str, ...]:
    """The names that an expression has."""
    return tuple(e.id for e in ast.walk(ast.parse(expression, mode="eval")) if isinstance(e, ast.Name))


def any_of(*choices: Any) -> AnyOf:
    """One of several patterns, tried in this order."""
    if not choices:
        raise BadPattern("any_of(): give at least one choice.")
    return AnyOf(choices)


def optional(wrap: Callable[[Any], Any], inner: Any) -> AnyOf:
    """`inner`, or what `wrap` makes of it: `optional(lambda x: op(aten.relu, x), var("x"))`."""
    return AnyOf((wrap(inner), inner))


def list_of(element: Any, *, partial: bool = False) -> ListOf:
    """A list of any length, each element of which matches; with `partial`, at least one of them.

    What has `users=ANY`, or more than one user, is one node for all elements.
    """
    return ListOf(element, partial)


def repeated(element: Op) -> Repeated:
    """All calls of this form on what they share: every `getitem` of one split. Other users of it are a mismatch."""
    if not isinstance(element, Op):
        raise BadPattern("repeated(...): it repeats a call; give op(...).")
    return Repeated(element)


def outputs(*patterns: Any) -> Outputs:
    """Several results of one pattern, in the order of what replaces them."""
    if not any(isinstance(p, Op) for p in patterns):
        raise BadPattern("outputs(...): at least one result must be a call.")
    return Outputs(patterns)


def tolerances(given: Sequence[str] | str) -> frozenset[Tolerance]:
    """A set of tolerances; an unknown name is an error."""
    names = {given} if isinstance(given, str) else set(given)
    unknown = sorted(names - set(TOLERANCES))
    if unknown:
        raise BadPattern(f"tolerate={unknown[0]!r}: known are {', '.join(get_args(Tolerance))}.")
    return frozenset(names)  # type: ignore[arg-type]


def parts(pattern: Any) -> Iterator[Any]:
    """What an expression is made of, directly."""
    if isinstance(pattern, Op):
        yield from pattern.args
        yield from pattern.kwargs.values()
    elif isinstance(pattern, AnyOf):
        yield from pattern.choices
    elif isinstance(pattern, (ListOf, Repeated)):
        yield pattern.element
    elif isinstance(pattern, Outputs):
        yield from pattern.patterns
    elif isinstance(pattern, (list, tuple)):
        yield from pattern


def walk(pattern: Any, *, into_lists: bool = True) -> Iterator[Any]:
    """An expression and all its parts, each once, in the order in which they are written.

    The elements of lists of any length may be left out: they are searched for by themselves.
    """
    seen: set[int] = set()
    pending = [pattern]
    while pending:
        at = pending.pop()
        if id(at) not in seen:
            seen.add(id(at))
            yield at
            if into_lists or not isinstance(at, ListOf):
                pending.extend(reversed(list(parts(at))))


def listing(pattern: Any) -> str:
    """The whole of an expression, one line a part: two that list alike look for the same."""
    numbers = {id(p): i for i, p in enumerate(walk(pattern)) if isinstance(p, Pattern)}

    def shown(part: Any) -> str:
        if isinstance(part, Pattern):
            return f"%{numbers[id(part)]}"
        if isinstance(part, (list, tuple)):
            return f"[{', '.join(map(shown, part))}]"
        if isinstance(part, Mapping):
            return f"{{{', '.join(f'{k}: {shown(v)}' for k, v in part.items())}}}"
        return source_hash(part) if isinstance(part, FunctionType) else f"{type(part).__name__} {literal(part)}"

    rows = [p for p in walk(pattern) if isinstance(p, Pattern)]
    return "\n".join(f"{type(p).__name__}({', '.join(shown(getattr(p, f.name)) for f in fields(p))})" for p in rows)  # type: ignore[arg-type]


def spelled(pattern: Any, depth: int = 3) -> str:
    """An expression as one would write it down in a sentence: `aten.mul(x, aten.add(y, eps))`; only so deep."""
    if isinstance(pattern, Op):
        if depth == 0:
            return f"{' | '.join(map(target_name, pattern.targets))}(...)"
        args = [spelled(a, depth - 1) for a in pattern.args]
        args += [f"{k}={spelled(v, depth - 1)}" for k, v in pattern.kwargs.items()]
        args += ["..."] if pattern.open else []
        return f"{' | '.join(map(target_name, pattern.targets))}({', '.join(args)})"
    if isinstance(pattern, (Var, Const)):
        return f"1/{pattern.name}" if isinstance(pattern, Const) and pattern.inverted else pattern.name
    if isinstance(pattern, Computed):
        return f"1/({pattern.expression})" if pattern.inverted else pattern.expression
    if isinstance(pattern, AnyOf):
        return f"({' or '.join(spelled(p, depth) for p in pattern.choices)})"
    if isinstance(pattern, ListOf):
        return f"[{spelled(pattern.element, depth)}, ...]"
    if isinstance(pattern, Repeated):
        return f"every {spelled(pattern.element, depth)}"
    if isinstance(pattern, Outputs):
        return ", ".join(spelled(p, depth) for p in pattern.patterns)
    if isinstance(pattern, (list, tuple)):
        return f"[{', '.join(spelled(p, depth) for p in pattern)}]"
    return literal(pattern)


def target_name(target: Any) -> str:
    """A target as one would write it: `aten.mul`, `nn.Linear`, `.view`."""
    if isinstance(target, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
        return path_of(target).removeprefix("torch.ops.")
    if isinstance(target, str):
        return f".{target}"
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        return f"nn.{target.__name__}" if target.__module__.startswith("torch.nn") else target.__name__
    return (
        path_of(target) if not path_of(target).startswith("unprintable") else getattr(target, "__name__", str(target))
    )


def _name(name: str, what: str) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise BadPattern(f"{what}({name!r}): a name must be an identifier.")
    return name
