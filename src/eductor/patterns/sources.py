"""Patterns that come from search functions: precompiled where they are stored, traced when they are first wanted otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eductor.patterns.language import AnyOf, Pattern
from eductor.patterns.rules import Variant
from eductor.patterns.store import HOME, dumps, store
from eductor.patterns.trace import Signature, Table, pattern_of


@dataclass(eq=False)
class Traced:
    """The pattern of a search function in all spellings that the engines' decompositions give it."""

    fn: Callable[..., Any]
    signature: Signature
    dialect: str
    stored: str | None = None
    free: Mapping[str, Any] = field(default_factory=dict)
    any_rank: bool = False
    home: Path = HOME

    @property
    def path(self) -> Path:
        return self.home / f"{str(self.stored).rpartition('.')[0]}.json"

    @property
    def key(self) -> str:
        return str(self.stored).rpartition(".")[2]

    @property
    def is_stored(self) -> bool:
        return self.stored is not None and self.key in store(self.path)

    def variants(self) -> Sequence[Variant]:
        return store(self.path).variants(self.key) if self.is_stored else (self,)

    @property
    def required(self) -> frozenset[Any]:
        """Nothing is known of a function that was not traced yet."""
        return frozenset()

    @functools.cached_property
    def pattern(self) -> Pattern:
        return self.fresh()

    def fresh(self) -> Pattern:
        """The pattern as the function says it now."""
        found: dict[str, Pattern] = {}
        for table in _tables(self.dialect):
            one = pattern_of(
                self.fn,
                self.signature,
                dialect=self.dialect,
                decompositions=table,
                free=self.free,
                any_rank=self.any_rank,
            )
            found.setdefault(dumps({"": one}), one)
        choices = tuple(found.values())
        return choices[0] if len(choices) == 1 else AnyOf(choices)


def _tables(dialect: str) -> Iterator[Table]:
    """The decompositions with which the graphs of a stage may have been traced."""
    yield {}
    if dialect == "aten":
        # The room of the engines is below this one: only a trace, which no compile with stored patterns makes, asks them.
        from eductor.engines import INDUCTOR
        from eductor.options import Options

        try:
            yield INDUCTOR.decompositions(Options())
        except ImportError:  # it wants packages that nothing else here needs
            return
