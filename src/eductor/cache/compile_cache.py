"""What one compile finds on disk and leaves there.

The cache saves time and nothing else: whatever is wrong with it, a compile goes on without it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from eductor.cache.entry import Entry
from eductor.cache.key import Question
from eductor.cache.store import Store
from eductor.cache.values import NotKept
from eductor.engines import Engine
from eductor.errors import EductorWarning, warnings_until_now
from eductor.options import Options
from eductor.packing import Hoisted
from eductor.pipeline.base import GraphName
from eductor.pipeline.pipeline import Pipeline
from eductor.program.program import Program

_log = logging.getLogger("eductor")


@dataclass(frozen=True, slots=True)
class CompileCache:
    """The entries of one captured graph with its inputs; `question` is None where they are not to be kept, or cannot be."""

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
        """For the captured graph as Dynamo gives it. Instruments want to see a compile, so they get no stored one."""
        question = None
        is_on = options.cache and options.verify is None and not options.debug and not options.plans
        if is_on and Store.default().limit:
            with _without_cache_on_failure(name):
                question = Question.of(module, inputs, options, pipeline, engine)
        return CompileCache(name, question, not options.instruments, warned_before)

    def resumed(self, resume: Callable[[Entry], Callable[..., Any] | None]) -> Callable[..., Any] | None:
        """What `resume` makes of an earlier compile's entry; None where there is none, or it cannot be run."""
        if self.question is None or not self.reads:
            return None
        try:
            entry = self.question.answer(Store.default())
            run = None if entry is None else resume(entry)
        except Exception as error:
            self.question.give_up(Store.default(), error)
            return None
        if run is not None:
            _log.info("the %s comes from disk: no pass runs", self.name)
        return run

    def keep(self, program: Program, packed: Hoisted | None) -> None:
        """Stores a program, unless the user was warned of something that a warm start would not repeat."""
        if self.question is None or warnings_until_now() > self.warned_before:
            return
        with _without_cache_on_failure(self.name):
            self.question.keep(Entry.of(program, packed, self.question.guards()), Store.default())

    def pruned(
        self,
        whole: GraphModule,
        defined: Sequence[bool],
        prune: Callable[[], tuple[GraphModule, list[bool]]],
    ) -> tuple[GraphModule, list[bool]]:
        """A backward without some tangents: from disk, or made by `prune` and stored."""
        if self.question is None:
            return prune()
        known = self.question.cut(whole, defined, Store.default())
        if known is not None:
            return known
        warned_before = warnings_until_now()
        module, present = prune()
        if warnings_until_now() == warned_before:
            with _without_cache_on_failure(self.name):
                self.question.keep_cut(whole, defined, module, present, Store.default())
        return module, present


@contextmanager
def _without_cache_on_failure(name: GraphName) -> Iterator[None]:
    try:
        yield
    except NotKept as reason:
        _log.info("the %s is not kept on disk: it has %s", name, reason)
    except Exception as error:
        warnings.warn(f"the {name} is not kept on disk: {error!r}", EductorWarning, stacklevel=3)
