"""The decomposition tables of engines: a search function is traced with each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from eductor.patterns.trace.tracing import Table

Maker = Callable[[bool], Table]
_makers: list[Maker] = []


def add_table(make: Maker) -> None:
    """Has search functions traced with a table, too. An engine of the package adds its own; `make` takes `fallback_random`."""
    _makers.append(make)


def tables(dialect: str, *, fallback_random: bool = False) -> Iterator[Table]:
    """The decompositions with which the graphs of a stage may have been traced. Only a trace asks: none is made before."""
    yield {}
    for make in _makers if dialect == "aten" else ():
        try:
            yield make(fallback_random)
        except ImportError:  # it needs packages that nothing else here needs
            continue
