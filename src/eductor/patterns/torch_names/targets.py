"""Targets of torch's patterns: the operators that functions and methods spell, for any arguments.

A pattern of torch's captures anything: a tensor, a number, a list. What a function such as `torch.split` spells depends
on that, so all that it may spell is looked for.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

from eductor.graph import Bound
from eductor.graph.reading.bind import packets_of
from eductor.patterns.compile.forms import StandIns, bound_calls
from eductor.patterns.language.pattern import AnyOf, Op, Users, Var, listing, var
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
        call = given.called(bound, users)
        if given.are_all_in(call):
            found.setdefault(listing(call), call)
    return list(found.values())


def _bound(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[StandIns, Bound]]:
    """The ways in which a call can be read with a tensor, a whole number, another number or a list for what is free."""
    free = dict.fromkeys(id(v) for v in (*args[1:], *kwargs.values()) if isinstance(v, Var))
    kinds = itertools.product("tifl", repeat=min(len(free), 4))
    return bound_calls(target, args, kwargs, (dict(zip(free, case, strict=False)) for case in kinds))
