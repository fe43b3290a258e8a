"""Observers of a running pipeline: timing, recording, and whatever else wants to look on. No pass contains such code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch.fx import GraphModule

from eductor.graph.rewriter import Match, Reject
from eductor.graph.snapshot import Snapshot
from eductor.pipeline.base import STAGES, Context, Stage
from eductor.pipeline.steps import Step

Status = Literal["running", "changed", "unchanged", "skipped", "failed"]


@dataclass
class PassRun:
    """One pass over one graph, while it runs and afterwards. `seconds` counts the pass, not those who look on."""

    step: Step
    context: Context
    module: GraphModule
    before: Snapshot
    status: Status = "running"
    reason: str = ""
    matches: Sequence[Match] = ()
    rejects: Sequence[Reject] = ()
    reproducer: str = ""
    seconds: float = 0.0

    @property
    def address(self) -> str:
        return self.step.address


class Instrument:
    """Called before and after a pipeline, a pass and a match, or when one of them failed. Override what you need.

    A pass that does not apply is told by `skipped_pass` alone. An exception from `after_pass` says that the pass broke
    its contract: the pass is undone, and all instruments get `failed_pass`, those that had `after_pass` already, too.
    """

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


class Timer(Instrument):
    """Seconds of each pass, by address, added up over graphs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._before = 0.0

    def before_pass(self, run: PassRun) -> None:
        self._before = self.seconds.get(run.address, 0.0)

    def after_pass(self, run: PassRun) -> None:
        self.seconds[run.address] = self._before + run.seconds

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        self.after_pass(run)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did to one graph."""

    address: str
    stage: Stage
    name: str
    graph: int
    status: Status
    reason: str
    nodes_before: int
    nodes_after: int
    matches: tuple[Match, ...]
    rejects: tuple[Reject, ...]
    seconds: float

    @property
    def changed(self) -> bool:
        return self.status == "changed"


@dataclass
class Recorder(Instrument):
    """Keeps what each pass did to each graph, in the order of execution."""

    records: list[PassRecord] = field(default_factory=list)
    graphs: int = 0
    _stage: Stage | None = None
    _kept: int = 0

    def before_pipeline(self, stage: Stage, module: GraphModule) -> None:
        """A graph comes back in a later stage, in the last one as forward and as backward; any other is a new one."""
        known = self._stage is not None and STAGES.index(stage) > STAGES.index(self._stage)
        if not known and (stage, self._stage) != ("post_grad", "post_grad"):
            self.graphs += 1
        self._stage = stage

    def before_pass(self, run: PassRun) -> None:
        self._kept = len(self.records)

    def after_pass(self, run: PassRun) -> None:
        self._keep(run)

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        del self.records[self._kept :]
        self._keep(run)

    def skipped_pass(self, run: PassRun) -> None:
        self._keep(run)

    def _keep(self, run: PassRun) -> None:
        self.records.append(
            PassRecord(
                address=run.address,
                stage=run.step.stage,
                name=run.step.name,
                graph=self.graphs,
                status=run.status,
                reason=run.reason,
                nodes_before=len(run.before),
                nodes_after=len(run.module.graph.nodes),
                matches=tuple(run.matches),
                rejects=tuple(run.rejects),
                seconds=run.seconds,
            )
        )

    def changed(self) -> list[str]:
        """The addresses of the passes that changed a graph."""
        return [r.address for r in self.records if r.changed]
