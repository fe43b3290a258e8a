"""The cache on disk as one compile uses it: loads an entry, or stores one.

No failure of the cache fails a compile: it goes on without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.fx import GraphModule

from eductor.cache.entry import Entry, read, write
from eductor.cache.graphs import graph_from_data, graph_to_data
from eductor.cache.key import Question, is_source_unchanged
from eductor.cache.store import Store
from eductor.cache.values import NotKept
from eductor.engines import Engine
from eductor.errors import warn_uncounted, warnings_until_now
from eductor.options import Options
from eductor.packing import Hoisted
from eductor.pipeline import GraphName, Instrument, Pipeline
from eductor.program.parts import Program

T = TypeVar("T")
_log = logging.getLogger("eductor")


@dataclass(frozen=True, slots=True)
class CompileCache:
    """The cache entries of a captured graph and its inputs; `question` is None if they cannot or must not be cached."""

    name: GraphName
    question: Question | None
    reads: bool
    warned_before: int

    @staticmethod
    def of(
        name: GraphName,
        module: GraphModule,
        inputs: Sequence[Any],
        options: Options,
        pipeline: Pipeline,
        engine: Engine,
        *,
        warned_before: int,
    ) -> CompileCache:
        """The cache for a graph that Dynamo captured.

        With instruments it reads nothing, as they must see a compile, and where one limits passes it stores nothing.
        """
        question = None
        limits = any(type(given).most_matches is not Instrument.most_matches for given in options.instruments)
        is_on = options.cache and options.verify is None and not (options.debug or options.plans or limits)
        if is_on and Store.default().limit:
            with _without_cache_on_failure(name):
                question = Question.of(module, inputs, options, pipeline, engine)
        return CompileCache(name, question, not options.instruments, warned_before)

    @property
    def is_warm(self) -> bool:
        """Whether there is an entry to resume from."""
        return self.question is not None and self.reads and Store.default().has(self.question.key)

    def resumed(self, resume: Callable[[Entry], Callable[..., Any] | None]) -> Callable[..., Any] | None:
        """What `resume` makes of a cached entry; None if there is none, or it cannot be run."""
        if self.question is None or not self.reads:
            return None
        question = self.question
        entry = _found(question.key, lambda data: read(data, question.fakes, question.symbols))
        try:
            run = None if entry is None else resume(entry)
        except Exception as error:
            Store.default().give_up(question.key, f"it cannot be run: {type(error).__name__}: {error}")
            return None
        if run is not None:
            _log.info("the %s is loaded from disk: no pass runs", self.name)
        return run

    def keep(self, program: Program, packed: Hoisted | None) -> None:
        """Stores a program, unless its compile raised a warning, which a warm start would not repeat."""
        if self.question is None or not _may_keep(self.warned_before):
            return
        with _without_cache_on_failure(self.name):
            entry = Entry.of(program, packed, self.question.guards())
            Store.default().put(self.question.key, write(entry, self.question.symbols))

    def pruned(
        self,
        whole: GraphModule,
        defined: Sequence[bool],
        prune: Callable[[], tuple[GraphModule, list[bool]]],
    ) -> tuple[GraphModule, list[bool]]:
        """A backward pruned of undefined tangents: from disk, or made by `prune` and stored."""
        if self.question is None:
            return prune()
        symbols, mode = self.question.symbols, self.question.fakes.mode
        key = self.question.of_backward(whole, defined)

        def restored(data: dict[str, Any]) -> tuple[GraphModule, list[bool]]:
            return graph_from_data(data["graph"], symbols, mode), data["present"]

        known = _found(key, restored) if self.reads else None
        if known is not None:
            return known
        warned_before = warnings_until_now()
        module, present = prune()
        if _may_keep(warned_before):
            with _without_cache_on_failure(self.name):
                Store.default().put(key, {"graph": graph_to_data(module, symbols), "present": present})
        return module, present


def _may_keep(warned_before: int) -> bool:
    """Whether a compile raised no warning, and ran the passes that its key names."""
    return warnings_until_now() == warned_before and is_source_unchanged()


def _found(key: str, read: Callable[[Any], T]) -> T | None:
    """The data under a key; None with a warning if it cannot be read."""
    store = Store.default()
    try:
        data = store.get(key)
        return None if data is None else read(data)
    except Exception as error:
        store.give_up(key, f"it cannot be read: {type(error).__name__}: {error}")
        return None


@contextmanager
def _without_cache_on_failure(name: GraphName) -> Iterator[None]:
    try:
        yield
    except NotKept as reason:
        _log.info("the %s is not cached on disk: it has %s", name, reason)
    except Exception as error:
        warn_uncounted(f"the {name} is not cached on disk: {error!r}")
