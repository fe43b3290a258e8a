"""Patterns from search functions: loaded if they are stored, else traced when they are first needed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from eductor.errors import BadPattern
from eductor.graph.decomposition_tables import tables
from eductor.patterns.compile.index import Variant
from eductor.patterns.language.pattern import AnyOf, Pattern, listing
from eductor.patterns.trace.store import HOME, store
from eductor.patterns.trace.tracing import SearchInputs, pattern_of


@dataclass(eq=False)
class Traced:
    """The pattern of a search function in all spellings that the engines' decompositions give it."""

    fn: Callable[..., Any]
    inputs: SearchInputs
    dialect: str
    stored: str | None = None
    free: Mapping[str, Any] = field(default_factory=dict)
    any_rank: bool = False
    home: Path | None = None
    """Where its file is; by default in this package, or for a function of one's own beside the file that has it."""

    @property
    def path(self) -> Path:
        is_ours = str(self.fn.__module__).partition(".")[0] == "eductor"
        home = self.home or (HOME if is_ours else Path(inspect.getfile(self.fn)).parent)
        return home / f"{str(self.stored).rpartition('.')[0]}.json"

    @property
    def key(self) -> str:
        return str(self.stored).rpartition(".")[2]

    @property
    def is_stored(self) -> bool:
        return self.stored is not None and self.key in store(self.path)

    def variants(self) -> Sequence[Variant]:
        return store(self.path).variants(self.key, self.inputs.exclusive) if self.is_stored else (self,)

    @property
    def required(self) -> frozenset[Any]:
        """Nothing is known of a function that was not traced yet."""
        return frozenset()

    @functools.cached_property
    def pattern(self) -> Pattern:
        return self.fresh()

    def fresh(self) -> Pattern:
        """The pattern as the function says it now: for each table, and for other ranks where they are wanted."""
        found: dict[str, Pattern] = {}
        cases = [(table, inputs) for table in tables(self.dialect) for inputs in self.examples()]
        for i, (table, inputs) in enumerate(cases):
            try:
                one = pattern_of(
                    self.fn, inputs, dialect=self.dialect, decompositions=table, free=self.free, probe=i == 0
                )
            except BadPattern:
                if inputs is self.inputs:
                    raise
            else:
                found.setdefault(listing(one), one)
        choices = tuple(found.values())
        return choices[0] if len(choices) == 1 else AnyOf(choices)

    def examples(self) -> Iterator[SearchInputs]:
        """The examples, and what they are with other ranks; not every function takes those."""
        yield self.inputs
        most = max((x.dim() for x in self.inputs.examples if isinstance(x, torch.Tensor)), default=0)
        for rank in range(1, _MOST_DIMENSIONS + 1) if self.any_rank else ():
            other = self.inputs.raised(rank - most) if rank != most else None
            if other is not None:
                yield other


_MOST_DIMENSIONS = 4
