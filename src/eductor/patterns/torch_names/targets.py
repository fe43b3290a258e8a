"""Targets of torch's patterns: the operators that functions and methods spell, for any arguments.

A pattern of torch's captures anything: a tensor, a number, a list. What a function such as `torch.split` spells depends
on that, so all that it may spell is looked for.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from eductor.graph.reading.bind import Bound, bind_call, packets_of
from eductor.patterns.language.pattern import AnyOf, Op, Pattern, Users, Var, listing, var, walk
from eductor.patterns.match.call_reading import signature_of
from eductor.patterns.match.spellings import SOURCES

_RESPELLED = frozenset(source for found in SOURCES.values() for source in found)
"""Operators that graphs are read without, or not only as themselves."""


def call_of(said: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of the targets: one expression where they are read alike, else one for each."""
    together = tuple(t for t in said.targets if (found := packets_of(t)) and _RESPELLED.isdisjoint(found))
    apart = [t for t in said.targets if t not in together]
    choices = [Op(together, args, kwargs, said.users)] if together else []
    for target in apart:
        spelled = _operators(target, args, kwargs, said.users) if packets_of(target) is None else []
        # An item of something may be a selection from a tensor, or one of several results.
        is_item = target is operator.getitem
        choices += spelled if spelled and not is_item else [Op((target,), args, kwargs, said.users)]
        choices += spelled if is_item and isinstance(args[0], Var) else []
    return choices[0] if len(choices) == 1 else AnyOf(tuple(choices))


def read_as(target: Any) -> Iterator[Any]:
    """Under what the calls of a target may be read, whatever their arguments are."""
    packets = packets_of(target)
    if packets is None:
        calls = [tuple(var(f"_{i}", anything=True) for i in range(n)) for n in range(1, 4)]
        packets = tuple(dict.fromkeys(bound.packet for args in calls for _, bound in _bound(target, args, {})))
    yield target
    for packet in packets:
        yield packet
        yield from (key for key, found in SOURCES.items() if packet in found)


def _operators(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], users: Users) -> list[Op]:
    """The operators that a function may spell, which depends on what its arguments are: a number, a list, a tensor."""
    found: dict[str, Op] = {}
    for given, bound in _bound(target, args, kwargs):
        values = {name: given.restored(v) for name, v in bound.arguments.items() if name in bound.given}
        if given.is_restored(values):
            in_order = itertools.takewhile(values.__contains__, signature_of(bound.op).names)
            places = tuple(in_order)[: signature_of(bound.op).positional]
            rest = {name: v for name, v in values.items() if name not in places}
            made = Op((bound.packet,), tuple(values[n] for n in places), rest, users)
            found.setdefault(listing(made), made)
    return list(found.values())


def _bound(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[_StandIns, Bound]]:
    """The ways in which a call can be read with a tensor, a whole number, another number or a list for what is free."""
    free = {id(v): v for v in (*args[1:], *kwargs.values()) if isinstance(v, Var)}
    for kinds in itertools.product("tifl", repeat=min(len(free), 4)):
        given = _StandIns(dict(zip(free, kinds, strict=False)))
        bound = bind_call(target, given.filled(args), {k: given.filled(v) for k, v in kwargs.items()})
        if isinstance(bound, Bound):
            yield given, bound


class _StandIns:
    """Something of a kind in place of each pattern, that can be found again; tensors where nothing else is said."""

    def __init__(self, kinds: Mapping[int, str]) -> None:
        self._kinds = kinds
        self._known: list[tuple[Any, Any]] = []

    def filled(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self.filled(v) for v in value)
        if not isinstance(value, Pattern):
            return value
        number = (1 << 40) + len(self._known)
        made: dict[str, Any] = {"i": number, "f": number + 0.5, "l": [number]}
        tensor = torch.empty(2, 2, device="meta")
        self._known.append((made.get(self._kinds.get(id(value), "t"), tensor), value))
        return self._known[-1][0]

    def restored(self, value: Any) -> Any:
        for made, pattern in self._known:
            if value is made or (not isinstance(made, torch.Tensor) and type(value) is type(made) and value == made):
                return pattern
        return [self.restored(v) for v in value] if isinstance(value, (list, tuple)) else value

    def is_restored(self, values: Mapping[str, Any]) -> bool:
        """Whether all patterns are still there: what was computed from one is not found again."""
        there = {id(p) for v in values.values() for p in walk(v)}
        return all(id(pattern) in there for _, pattern in self._known)
