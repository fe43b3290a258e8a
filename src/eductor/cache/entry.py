"""Serializes a compiled program to plain data, and reads it back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch.fx import GraphModule

from eductor.autograd.captured import Fakes
from eductor.cache.graphs import graph_from_data, graph_to_data
from eductor.cache.values import NotKept, Symbols, value_from_data, value_to_data
from eductor.graph import No
from eductor.packing import Hoisted, with_prologue
from eductor.program.parts import Program


@dataclass(frozen=True, slots=True)
class Packing:
    """The prologue that computes packed values, with the indices of the inputs that it reads and that the graph writes."""

    prologue: GraphModule
    uncounted: tuple[int, ...]
    sources: tuple[int, ...]
    written: tuple[int, ...]

    @staticmethod
    def of(hoisted: Hoisted) -> Packing:
        sources, written = (tuple(map(_number, places)) for places in (hoisted.sources, hoisted.written))
        return Packing(hoisted.prologue, tuple(hoisted.kept.uncounted), sources, written)


def _number(source: int | torch.Tensor) -> int:
    if not isinstance(source, int):
        raise NotKept("a packed value computed from a tensor that the module holds")
    return source


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached compile: its program, packing, and guards on sizes."""

    program: Program
    packing: Packing | None
    guards: tuple[Any, ...] = ()

    @staticmethod
    def of(program: Program, hoisted: Hoisted | None, guards: tuple[Any, ...]) -> Entry:
        return Entry(program, Packing.of(hoisted) if hoisted is not None else None, guards)

    def hoisted(self, module: GraphModule) -> Hoisted | None:
        """A captured graph with the cached prologue; None without packing."""
        p = self.packing
        return with_prologue(module, p.prologue, p.uncounted, p.sources, p.written) if p is not None else None


def write(entry: Entry, symbols: Symbols) -> dict[str, Any]:
    """An entry as plain data; raises `NotKept` if a part cannot be serialized."""
    program = entry.program
    return {
        "guards": [symbols.spell(guard) for guard in entry.guards],
        "packing": _to_data(Packing | None, entry.packing, symbols),
        **_to_data(Program, program, symbols),
    }


def read(data: dict[str, Any], fakes: Fakes, symbols: Symbols) -> Entry | None:
    """Reads an entry for these inputs, and installs its guards; None if they do not hold for the inputs' sizes."""
    conditions = [symbols.read(guard) for guard in data["guards"]]
    if not all(_holds(condition) for condition in conditions):
        return None
    for condition in conditions:
        bool(condition)  # installs a guard
    program = _from_data(Program, data, fakes, symbols)
    return Entry(program, _from_data(Packing | None, data["packing"], fakes, symbols))


def _holds(condition: Any) -> bool:
    """Whether a condition holds for the sizes of this call; installs no guard."""
    return bool(condition.node.hint if isinstance(condition, torch.SymBool) else condition)


def _to_data(kind: Any, value: Any, symbols: Symbols) -> Any:
    """A value of an annotated type as plain data: dataclasses by field, graphs as text; `Any` is a fake value or a number."""
    home, parts = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if home is UnionType:
        return _to_data(parts[0], value, symbols)
    if kind is No:
        return str(value)
    if kind is GraphModule or home is Callable:
        return graph_to_data(value if kind is GraphModule else value(), symbols)
    if fields := _fields(kind):
        return {name: _to_data(field, getattr(value, name), symbols) for name, field in fields.items()}
    if home is tuple:
        return [_to_data(part, one, symbols) for part, one in zip(_items(parts, value), value, strict=True)]
    if home is frozenset:
        return sorted(value)
    if kind is torch.memory_format:
        return str(value).removeprefix("torch.")
    return value_to_data(value, symbols) if kind is Any else value


def _from_data(kind: Any, data: Any, fakes: Fakes, symbols: Symbols) -> Any:
    """Reads a value of an annotated type; a function that gives a graph reads it when it is called."""
    home, parts = get_origin(kind), get_args(kind)
    if data is None:
        return None
    if home is UnionType:
        return _from_data(parts[0], data, fakes, symbols)
    if kind is No:
        return No(data)
    if kind is GraphModule or home is Callable:
        graph = partial(graph_from_data, data, symbols, fakes.mode)
        return graph() if kind is GraphModule else graph
    if fields := _fields(kind):
        return kind(**{name: _from_data(field, data[name], fakes, symbols) for name, field in fields.items()})
    if home is tuple:
        return tuple(_from_data(part, one, fakes, symbols) for part, one in zip(_items(parts, data), data, strict=True))
    if home is frozenset:
        return frozenset(data)
    if kind is torch.memory_format:
        return getattr(torch, data)
    return value_from_data(data, symbols, fakes.mode) if kind is Any else data


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass with their types; none for another type."""
    return get_type_hints(kind) if is_dataclass(kind) else {}


def _items(parts: tuple[Any, ...], values: Sequence[Any]) -> tuple[Any, ...]:
    """The types of a tuple's items; `tuple[int, ...]` has any number of them."""
    return parts[:1] * len(values) if parts[-1] is ... else parts
