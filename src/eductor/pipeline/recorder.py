"""Records a compile: what each stage and each pass did to each graph, in the order of execution."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import GraphModule, Node

from eductor.compat import calls_of, is_erased, sort_key
from eductor.graph.matches import Match, Rejection
from eductor.graph.snapshot import Snapshot
from eductor.pipeline.base import Role, Stage
from eductor.pipeline.instruments import FlowStage, Instrument, Numbering, PassRun, StageRun, Status
from eductor.pipeline.steps import Step


@dataclass(frozen=True, slots=True)
class Edit:
    """One node after a match."""

    node: Node
    previous: Node | None = None
    """The preceding node; None if it was erased."""
    call: Sequence[Any] = ()
    """Its kind, target, positional and keyword arguments."""
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did to one graph."""

    address: str
    stage: Stage
    name: str
    graph: int
    role: Role
    variant: str
    status: Status
    reason: str
    nodes_before: int
    nodes_after: int
    matches: tuple[Match, ...]
    rejects: tuple[Rejection, ...]
    seconds: float
    before: Snapshot | None = None
    after: Snapshot | None = None
    edits: tuple[Sequence[Edit], ...] = ()
    """The edits of each match, if graphs are kept."""
    step: Step | None = None
    began: float = 0.0
    """Seconds since the recorder was created."""
    stage_at: int | None = None
    """The index of its stage in `Recorder.stages`; None outside of a compile's stages."""

    @property
    def changed(self) -> bool:
        return self.status == "changed"


@dataclass(frozen=True, slots=True)
class StageRecord:
    """What one stage of a compile did to one graph; its passes have separate records."""

    name: FlowStage
    graph: int
    role: Role
    variant: str
    compile_id: str
    nodes: int
    facts: dict[str, Any]
    seconds: float
    failure: str = ""
    start: Snapshot | None = None
    """Its input graph, if graphs are kept."""
    began: float = 0.0
    """Seconds since the recorder was created."""
    lasted: float = 0.0
    """Seconds until its end, the stages inside included."""


@dataclass
class Recorder(Instrument):
    """Records what each stage and pass did; with `keep_graphs`, also the graph before and after each change."""

    keep_graphs: bool = False
    wants_curve: bool = False
    records: list[PassRecord] = field(default_factory=list)
    stages: list[StageRecord] = field(default_factory=list)
    _numbering: Numbering = field(default_factory=Numbering)
    _open: dict[int, int] = field(default_factory=dict)
    _kept: int = 0
    _began: float = 0.0
    _edits: list[Sequence[Edit]] = field(default_factory=list)
    _made: float = field(default_factory=time.perf_counter)

    @property
    def wants_details(self) -> bool:  # type: ignore[override]
        return self.keep_graphs

    @property
    def graphs(self) -> int:
        """How many captured graphs were seen."""
        return len(self._numbering.met)

    def before_stage(self, run: StageRun) -> None:
        self._open[id(run)] = len(self.stages)
        record = self._stage_record(run, len(run.module.graph.nodes))
        start = Snapshot(run.module.graph) if self.keep_graphs else None
        self.stages.append(replace(record, start=start, began=self._now()))

    def after_stage(self, run: StageRun) -> None:
        self._close(run)

    def failed_stage(self, run: StageRun, error: Exception) -> None:
        self._close(run, f"{type(error).__name__}: {error}")

    def before_pass(self, run: PassRun) -> None:
        self._kept = len(self.records)
        self._edits = []
        self._began = self._now()

    def after_match(self, run: PassRun, match: Match) -> None:
        if self.keep_graphs:
            self._edits.append(_edits(run.module, match.touched))

    def after_pass(self, run: PassRun) -> None:
        self._keep(run)

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        del self.records[self._kept :]
        self._keep(run)

    def skipped_pass(self, run: PassRun) -> None:
        self._keep(run)

    def changed(self) -> list[str]:
        """The addresses of the passes that changed a graph."""
        return [r.address for r in self.records if r.changed]

    def _keep(self, run: PassRun) -> None:
        keep = self.keep_graphs and run.status == "changed"
        self.records.append(
            PassRecord(
                address=run.address,
                stage=run.step.stage,
                name=run.step.name,
                graph=self._numbering.number(run.context.graph, run.module),
                role=run.context.graph.role,
                variant=run.context.graph.variant,
                status=run.status,
                reason=run.reason,
                nodes_before=len(run.before),
                nodes_after=len(run.module.graph.nodes),
                matches=tuple(run.matches),
                rejects=tuple(run.rejects),
                seconds=run.seconds,
                before=run.before if keep else None,
                after=run.after if keep else None,
                edits=tuple(self._edits) if keep else (),
                step=run.step,
                began=self._began if run.status != "skipped" else self._now(),
                stage_at=next(reversed(self._open.values()), None),
            )
        )

    def _close(self, run: StageRun, failure: str = "") -> None:
        place = self._open.pop(id(run))
        opened = self.stages[place]
        record = self._stage_record(run, opened.nodes, failure)
        lasted = self._now() - opened.began
        self.stages[place] = replace(record, start=opened.start, began=opened.began, lasted=lasted)

    def _stage_record(self, run: StageRun, nodes: int, failure: str = "") -> StageRecord:
        name = run.graph
        number = self._numbering.number(name, run.module)
        place = (number, name.role, name.variant, name.compile_id)
        return StageRecord(run.name, *place, nodes, dict(run.facts), run.seconds, failure)

    def _now(self) -> float:
        return time.perf_counter() - self._made


def _edits(module: GraphModule, touched: Sequence[Node]) -> list[Edit]:
    """The nodes that a match touched, after it, in the order of the graph; those inside of bodies are omitted."""
    here = [node for node in touched if node.graph is module.graph]
    erased = [Edit(node) for node in here if is_erased(node)]
    live = sorted((node for node in here if not is_erased(node)), key=sort_key)
    return [*erased, *(Edit(node, node.prev, tuple(calls_of([node])), dict(node.meta)) for node in live)]
