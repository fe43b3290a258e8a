"""Runs of tokens with a period: the same calls again and again, as repeated layers leave them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """Calls from `start` to `end` in which each token equals that one `period` calls before."""

    start: int
    end: int
    period: int

    @property
    def saved(self) -> int:
        """How many calls need not be compiled."""
        return self.end - self.start - self.period


Cut = Callable[[Run], tuple[int, int] | None]
"""Where to cut a run into regions: its first call, and how many regions follow; None to leave it whole."""


def runs_of(tokens: Sequence[int], least: int, cut: Cut) -> Iterator[tuple[Run, int, int]]:
    """Runs that do not overlap, each the one that saves most between others, with the answer of `cut`.

    An interval of a sorted graph is convex: a call of it as a whole makes no cycle.
    """
    import numpy

    codes, pending = numpy.asarray(tokens, dtype=numpy.int64), [(0, len(tokens))]
    while pending:
        low, high = pending.pop()
        run = _best(codes[low:high], low, least)
        if run is None:
            continue
        found = cut(run)
        start, count = (run.start, 0) if found is None else found
        end = start + count * run.period if count else run.end
        if count:
            yield run, start, count
        pending += [(low, start), (end, high)]


def _best(codes: Any, offset: int, least: int) -> Run | None:
    """The run that saves most; of those that save about the same, the one with the shortest period."""
    best: Run | None = None
    for period in range(least, len(codes) // 2 + 1):
        for start, end in _intervals(codes[:-period] == codes[period:], period):
            run = Run(offset + start, offset + end + period, period)
            if best is None or run.saved > 1.02 * best.saved:
                best = run
    return best


def _intervals(flags: Any, least: int) -> Iterator[tuple[int, int]]:
    """The maximal intervals of so many elements in which all flags are set."""
    import numpy

    if numpy.count_nonzero(flags) < least:
        return
    edges = numpy.flatnonzero(numpy.diff(flags, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts >= least
    yield from zip(starts[long].tolist(), ends[long].tolist(), strict=True)
