"""The store of precompiled patterns: traces of search functions, as data that is readable in a diff.

A file has one pattern after the other, one line a call: its number, what is called, its arguments. `%3` is the call of
that number, which comes before, `$x` what the name `x` stands for, `=x.shape[0]` what follows from such names.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from eductor.compat import OpOverload
from eductor.errors import BadPattern
from eductor.graph.text.printer import find, path_of
from eductor.patterns.compile.forms import forms
from eductor.patterns.language.pattern import (
    ANY,
    AnyOf,
    Computed,
    Const,
    Op,
    Outputs,
    Pattern,
    Tolerance,
    Var,
    parts,
    walk,
)

VERSION = 3
HOME = Path(__file__).parents[1] / "precompiled"


def dumps(patterns: Mapping[str, Pattern], tolerated: Mapping[str, frozenset[Tolerance]] | None = None) -> str:
    """Patterns by name as text, each variant with the operators that a graph must have for it."""
    texts = []
    for name, pattern in sorted(patterns.items()):
        variants = pattern.choices if isinstance(pattern, AnyOf) else (pattern,)
        body = ",\n".join(_variant(v, (tolerated or {}).get(name, frozenset())) for v in variants)
        texts.append(f"{json.dumps(name)}: [\n{body}]")
    body = ",\n".join(texts)
    return f'{{"version": {VERSION}, "patterns": {{\n{body}\n}}}}\n'


def _variant(pattern: Pattern, tolerated: frozenset[Tolerance]) -> str:
    calls = _in_order(pattern)
    numbers = {id(call): i for i, call in enumerate(calls)}
    leaves = {p.name: p for p in walk(pattern) if isinstance(p, (Var, Const))}
    names = {n: _described(p) if isinstance(p, Var) else "constant" for n, p in leaves.items()}
    rows = [json.dumps(_row(call, numbers)) for call in calls]
    outputs = pattern.patterns if isinstance(pattern, Outputs) else (pattern,)
    results = json.dumps([_encoded(o, numbers) for o in outputs])
    operators = json.dumps(sorted(path_of(key) for key in required_by(pattern, tolerated)))
    body = ",\n  ".join(rows)
    head = f'"operators": {operators},\n  "names": {json.dumps(names)}, "outputs": {results}'
    return f' {{{head}, "calls": [\n  {body}]}}'


def required_by(pattern: Pattern, tolerated: frozenset[Tolerance]) -> frozenset[Any]:
    """The operators that every form of a pattern has."""
    found = [
        {key for call in form.calls for key in call.keys if len(call.keys) == 1} for form in forms(pattern, tolerated)
    ]
    return frozenset(set.intersection(*found))


def _in_order(pattern: Pattern) -> list[Op]:
    """The calls of a pattern, each once, after those whose results it takes."""
    found: dict[int, Op] = {}
    pending: list[tuple[Any, bool]] = [(pattern, False)]
    while pending:
        at, is_left = pending.pop()
        if is_left:
            found[id(at)] = at
        elif id(at) not in found:
            if isinstance(at, Op):
                pending.append((at, True))
            pending.extend((part, False) for part in reversed(list(parts(at))))
    return list(found.values())


def _described(leaf: Var) -> Any:
    """What a tensor must be: its kind; its sizes, where they are not all free. Who reads it says which are exclusive."""
    if leaf.where is not None:
        raise BadPattern(f"var({leaf.name!r}) has a condition, which cannot be stored in a precompiled pattern.")
    kind = "any" if leaf.anything else leaf.kind or "tensor"
    return kind if leaf.shape is None else [kind, list(leaf.shape)]


def _row(call: Op, numbers: Mapping[int, int]) -> list[Any]:
    (target,) = call.targets
    row = [numbers[id(call)], path_of(target), [_encoded(a, numbers) for a in call.args]]
    kwargs = {k: _encoded(v, numbers) for k, v in call.kwargs.items()}
    users = "any" if call.users is ANY else call.users
    rest = [kwargs, users] if users is not None else [kwargs] if kwargs else []
    return [*row, *rest]


def _encoded(value: Any, numbers: Mapping[int, int]) -> Any:
    if isinstance(value, Op):
        return f"%{numbers[id(value)]}"
    if isinstance(value, Const) and value.inverted:
        return {"inverse": value.name}
    if isinstance(value, (Var, Const)):
        return f"${value.name}"
    if isinstance(value, Computed):
        return {"inverse of": value.expression} if value.inverted else f"={value.expression}"
    if isinstance(value, (list, tuple)):
        return [_encoded(v, numbers) for v in value]
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, float):
        return {"float": str(value)}
    if isinstance(value, str):
        return {"str": value}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, OpOverload):
        return {"operator": path_of(value)}
    raise BadPattern(f"{value!r} cannot be stored in a precompiled pattern.")


class StoredVariant:
    """One spelling of a precompiled pattern, made when it is first wanted."""

    def __init__(self, entry: Mapping[str, Any], exclusive: Collection[str]) -> None:
        self._entry = entry
        self._exclusive = exclusive

    @property
    def required(self) -> frozenset[Any]:
        """The operators without which it cannot match; one that is not registered, no graph has: its path."""
        return frozenset([_target(path) or path for path in self._entry["operators"]])

    @functools.cached_property
    def pattern(self) -> Pattern | None:
        """None where this torch lacks an operator of it."""
        return _decoded(self._entry, self._exclusive)


class Store:
    """A file of precompiled patterns, read when it is first asked."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @functools.cached_property
    def _entries(self) -> dict[str, list[Mapping[str, Any]]]:
        if not self.path.exists():
            return {}
        found = json.loads(self.path.read_text())
        return dict(found["patterns"]) if found.get("version") == VERSION else {}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def variants(self, name: str, exclusive: Collection[str] = ()) -> Sequence[StoredVariant]:
        """The spellings of a pattern, each with what it requires of a graph; `exclusive` names are different nodes."""
        return [StoredVariant(entry, exclusive) for entry in self._entries[name]]


@functools.cache
def store(path: Path) -> Store:
    """The store of a file, one for the whole process."""
    return Store(path)


_targets: dict[str, Any] = {}


def _target(path: str) -> Any:
    """The operator at a path, or None. It may be registered later: Inductor has operators of its own."""
    if path not in _targets and (found := find(path)) is not None:
        _targets[path] = found
    return _targets.get(path)


def _var(name: str, said: Any, exclusive: bool) -> Var:
    kind, shape = (said, None) if isinstance(said, str) else said
    kept = "" if kind in ("any", "tensor") else kind
    return Var(name, None, exclusive, kind == "any", kept, None if shape is None else tuple(shape))


class _Known(dict[str, Any]):
    """The values of names and call numbers; expressions are made on demand."""

    def __missing__(self, said: str) -> Computed:
        if said[0] != "=":
            raise KeyError(said)
        self[said] = found = _computed(said[1:])
        return found


@functools.cache
def _computed(expression: str) -> Computed:
    """A value computed from names; cached, as the same few sizes occur in all patterns."""
    return Computed(expression)


def _decoded(variant: Mapping[str, Any], exclusive: Collection[str]) -> Pattern | None:
    known = _Known(
        (f"${name}", Const(name) if said == "constant" else _var(name, said, name in exclusive))
        for name, said in variant["names"].items()
    )
    for number, path, args, *rest in variant["calls"]:
        target = _targets.get(path) or _target(path)
        if target is None:
            return None
        given = tuple([known[a] if type(a) is str else _value(a, known) for a in args])
        kwargs = {k: _value(v, known) for k, v in rest[0].items()} if rest else {}
        users = rest[1] if len(rest) > 1 else None
        known[f"%{number}"] = Op((target,), given, kwargs, ANY if users == "any" else users)
    outputs = tuple(_value(o, known) for o in variant["outputs"])
    found: Pattern = outputs[0] if len(outputs) == 1 else Outputs(outputs)
    return found


def _value(given: Any, known: _Known) -> Any:
    kind = type(given)
    if kind is str:
        return known[given]
    if kind is list:
        return [known[v] if type(v) is str else _value(v, known) for v in given]
    return _special(given) if kind is dict else given


def _special(given: Mapping[str, Any]) -> Any:
    ((kind, value),) = given.items()
    if kind == "torch":
        return getattr(torch, value)
    if kind == "inverse":
        return Const(value, inverted=True)
    if kind == "inverse of":
        return Computed(value, inverted=True)
    if kind == "operator":
        return _target(value)
    return {"float": float, "str": str, "device": torch.device}[kind](value)
