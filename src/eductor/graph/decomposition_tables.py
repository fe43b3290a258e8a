"""The decomposition tables of engines, with which the graphs of a compile, and so the patterns that look for them, are traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Table = Mapping[Any, Callable[..., Any]]
Maker = Callable[[bool], Table]
_makers: list[Maker] = []


def add_table(make: Maker) -> None:
    """Registers a table. An engine of the package adds its own; `make` takes `fallback_random`."""
    _makers.append(make)


def tables(dialect: str, *, fallback_random: bool = False) -> Iterator[Table]:
    """The decompositions with which the graphs of a stage may have been traced. Only a trace asks: none is made before."""
    yield {}
    for make in _makers if dialect == "aten" else ():
        try:
            yield make(fallback_random)
        except ImportError:  # it needs packages that nothing else here needs
            continue
