"""Precompiled patterns: what search functions were traced to, as data that can be read in a diff.

A file has one pattern after the other, one line a call: its number, what is called, its arguments. `%3` is the call of
that number, `$x` what the name `x` stands for, `{"expr": ...}` what follows from such names.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from eductor.errors import BadPattern
from eductor.graph.printer import find, path_of
from eductor.patterns.language import ANY, AnyOf, Computed, Const, Op, Outputs, Pattern, Var, walk

VERSION = 1
HOME = Path(__file__).parent / "precompiled"


def dumps(patterns: Mapping[str, Pattern], required: Mapping[str, Sequence[Any]]) -> str:
    """Patterns by name as text, with the operators that a graph must have for each."""
    texts = [
        f"{json.dumps(name)}: {_entry(pattern, required.get(name, ()))}" for name, pattern in sorted(patterns.items())
    ]
    body = ",\n".join(texts)
    return f'{{"version": {VERSION}, "patterns": {{\n{body}\n}}}}\n'


def _entry(pattern: Pattern, required: Sequence[Any]) -> str:
    variants = pattern.choices if isinstance(pattern, AnyOf) else (pattern,)
    operators = json.dumps(sorted(path_of(key) for key in required))
    body = ",\n".join(map(_variant, variants))
    return f'{{"operators": {operators}, "variants": [\n{body}]}}'


def _variant(pattern: Pattern) -> str:
    calls = [p for p in walk(pattern) if isinstance(p, Op)]
    numbers = {id(call): i for i, call in enumerate(calls)}
    leaves = {p.name: p for p in walk(pattern) if isinstance(p, (Var, Const))}
    names = {n: _described(p) if isinstance(p, Var) else "constant" for n, p in leaves.items()}
    rows = [json.dumps(_row(call, numbers)) for call in calls]
    outputs = pattern.patterns if isinstance(pattern, Outputs) else (pattern,)
    results = json.dumps([_encoded(o, numbers) for o in outputs])
    body = ",\n  ".join(rows)
    return f' {{"names": {json.dumps(names)}, "outputs": {results}, "calls": [\n  {body}]}}'


def _described(leaf: Var) -> Any:
    """What a tensor must be: its kind; its sizes, where they are not all free; whether those are only the last ones."""
    kind = leaf.kind or "any"
    return kind if leaf.shape is None else [kind, list(leaf.shape), *(["..."] if leaf.tail else [])]


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
        return {"expr": value.expression, "inverted": True} if value.inverted else {"expr": value.expression}
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
    raise BadPattern(f"{value!r} cannot be stored in a precompiled pattern.")


class Store:
    """A file of precompiled patterns, read when it is first asked, each pattern made when it is first wanted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @functools.cached_property
    def _entries(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        found = json.loads(self.path.read_text())
        return dict(found["patterns"]) if found.get("version") == VERSION else {}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Any:
        return iter(self._entries)

    def required(self, name: str) -> frozenset[Any]:
        """The operators without which a pattern cannot match."""
        return frozenset(_target(path) for path in self._entries[name]["operators"])

    def pattern(self, name: str) -> Pattern:
        variants = [_decoded(v) for v in self._entries[name]["variants"]]
        return variants[0] if len(variants) == 1 else AnyOf(tuple(variants))


@functools.cache
def store(path: Path) -> Store:
    """The store of a file, one for the whole process."""
    return Store(path)


@functools.cache
def _target(path: str) -> Any:
    found = find(path)
    if found is None:
        raise BadPattern(f"a precompiled pattern calls {path}, which this torch does not have.")
    return found


class _Decoder:
    """Makes the calls of a pattern from their rows; what a row refers to comes later in the file."""

    def __init__(self, names: Mapping[str, Any], rows: Sequence[Any]) -> None:
        self._rows = rows
        self._calls: dict[int, Op] = {}
        self._leaves = {f"${n}": Const(n) if kind == "constant" else _var(n, kind) for n, kind in names.items()}

    def value(self, given: Any) -> Any:
        if isinstance(given, str):
            return self._leaves[given] if given[0] == "$" else self._call(int(given[1:]))
        if isinstance(given, list):
            return [self.value(v) for v in given]
        return _special(given) if isinstance(given, dict) else given

    def _call(self, number: int) -> Op:
        if number not in self._calls:
            _, path, args, *rest = self._rows[number]
            kwargs = {k: self.value(v) for k, v in rest[0].items()} if rest else {}
            users = rest[1] if len(rest) > 1 else None
            made = Op((_target(path),), tuple([self.value(a) for a in args]), kwargs, ANY if users == "any" else users)
            self._calls[number] = made
        return self._calls[number]


def _var(name: str, said: Any) -> Var:
    kind, shape, *tail = (said, None) if isinstance(said, str) else said
    is_any = kind == "any"
    return Var(name, None, False, is_any, "" if is_any else kind, None if shape is None else tuple(shape), bool(tail))


def _decoded(variant: Mapping[str, Any]) -> Pattern:
    decoder = _Decoder(variant["names"], variant["calls"])
    outputs = tuple(decoder.value(o) for o in variant["outputs"])
    found: Pattern = outputs[0] if len(outputs) == 1 else Outputs(outputs)
    return found


def _special(given: Mapping[str, Any]) -> Any:
    ((kind, value), *rest) = given.items()
    if kind == "expr":
        return Computed(value, inverted=bool(rest))
    if kind == "inverse":
        return Const(value, inverted=True)
    if kind == "torch":
        return getattr(torch, value)
    return {"float": float, "str": str, "device": torch.device}[kind](value)
