"""Observers of a compile: the base class of instruments, what they receive, and a timer."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch.fx import GraphModule

from eductor.graph.matches import Match, Rejection
from eductor.graph.snapshot import Snapshot
from eductor.pipeline.base import Context, GraphName, Stage
from eductor.pipeline.steps import Step

Status = Literal["running", "changed", "unchanged", "skipped", "failed"]
FlowStage = Literal["pre_grad", "autograd", "joint", "partition", "post_grad", "lower", "engine", "link"]


@dataclass
class Numbering:
    """Numbers captured graphs from 1, in the order in which one instrument sees them."""

    met: dict[Any, int] = field(default_factory=dict)

    def number(self, name: GraphName, module: GraphModule) -> int:
        """The number of a graph, by its name in a compile, or by its module if passes are run by hand."""
        key = name.number or weakref.ref(module)
        return self.met.setdefault(key, len(self.met) + 1)


@dataclass
class StageRun:
    """One stage of a compile over one graph, while it runs and afterwards.

    `module` is the input graph, `inputs` are values for its placeholders if they are known, and `facts` is data about the
    result. No stage runs inside another one.
    """

    name: FlowStage
    graph: GraphName
    module: GraphModule
    inputs: Sequence[Any] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def title(self, number: int) -> str:
        """What runs, for a person: the graph by this number, the stage, and which part of the graph."""
        role = f" ({self.graph.role})" if self.graph.role in ("forward", "backward") else ""
        return f"graph {number}, {self.name}{role}"


@dataclass
class PassRun:
    """One pass over one graph, while it runs and afterwards. `seconds` excludes instruments."""

    step: Step
    context: Context
    module: GraphModule
    before: Snapshot
    after: Snapshot | None = None
    """The graph after the pass, if it changed."""
    status: Status = "running"
    reason: str = ""
    matches: Sequence[Match] = ()
    rejects: Sequence[Rejection] = ()
    reproducer: str = ""
    seconds: float = 0.0

    @property
    def address(self) -> str:
        return self.step.address


class Instrument:
    """An observer, called before and after each stage, pipeline, pass and match, or when one failed. Override what you need.

    A stage is one of a compile, with passes or without; a pipeline is the passes of a stage, which also run alone. A pass
    that does not apply causes `skipped_pass` only. An exception from `after_pass` means that the pass broke its contract:
    the pass is undone, and all instruments get `failed_pass`, even if they got `after_pass` already.
    """

    wants_details = False
    """Whether stages compute all facts about their results, which takes time."""
    wants_curve = False
    """Whether these facts include the memory-time curve, which takes as long as several budgets."""

    def before_stage(self, run: StageRun) -> None: ...

    def after_stage(self, run: StageRun) -> None: ...

    def failed_stage(self, run: StageRun, error: Exception) -> None: ...

    def before_pipeline(self, stage: Stage, module: GraphModule) -> None: ...

    def after_pipeline(self, stage: Stage, module: GraphModule) -> None: ...

    def failed_pipeline(self, stage: Stage, error: Exception) -> None: ...

    def before_pass(self, run: PassRun) -> None: ...

    def after_pass(self, run: PassRun) -> None: ...

    def failed_pass(self, run: PassRun, error: Exception) -> None: ...

    def skipped_pass(self, run: PassRun) -> None: ...

    def before_match(self, run: PassRun, match: Match) -> None: ...

    def after_match(self, run: PassRun, match: Match) -> None: ...

    def failed_match(self, run: PassRun, match: Match, error: Exception) -> None: ...

    def most_matches(self, run: PassRun) -> int | None:
        """How many matches the pass may make; None for all, 0 skips it. A bisection uses this."""
        return None


RAISED_IN = "eductor_raised_in"
"""The attribute of an error that names the stage in which it was raised."""


@contextmanager
def watched(run: StageRun, instruments: Sequence[Instrument]) -> Iterator[None]:
    """Times a stage and notifies instruments; records on an error the stage that raised it."""
    for instrument in instruments:
        instrument.before_stage(run)
    started = time.perf_counter()
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        if not hasattr(error, RAISED_IN):
            setattr(error, RAISED_IN, f"in the stage {run.name} of the {run.graph}")
        raise
    finally:
        run.seconds = time.perf_counter() - started
        for instrument in instruments:
            if failure is None:
                instrument.after_stage(run)
            elif isinstance(failure, Exception):
                instrument.failed_stage(run, failure)


class Timer(Instrument):
    """The seconds of each pass, by address, summed over graphs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._before = 0.0

    def before_pass(self, run: PassRun) -> None:
        self._before = self.seconds.get(run.address, 0.0)

    def after_pass(self, run: PassRun) -> None:
        self.seconds[run.address] = self._before + run.seconds

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        self.after_pass(run)
