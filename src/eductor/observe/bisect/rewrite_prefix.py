"""Limits a compile to its first rewrites, and records them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from eductor.graph.matches import Match
from eductor.observe.bisect.rewrite_repro import Trial
from eductor.pipeline.base import GraphName
from eductor.pipeline.instruments import Instrument, Numbering, PassRun, StageRun
from eductor.verification.samples import CannotRun, UserInputs


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One match of a pass on one graph; a pass that reports no matches is one rewrite as a whole."""

    address: str
    graph: GraphName
    number: int
    """The index of the match among those of the pass on this graph."""


@dataclass
class Scene:
    """The context of the last allowed rewrite: its pass, the graph before it, values for its inputs, the nodes it touches."""

    trial: Trial
    module: GraphModule
    inputs: Sequence[Any]
    touched: list[str]


class Prefix(Instrument):
    """An instrument that allows the first `limit` rewrites of a compile, counted over all its graphs.

    Rewrites of passes that the engine requires always happen, and are counted separately.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.made: list[Rewrite] = []
        self.required: list[Rewrite] = []
        self.failures: dict[tuple[Any, ...], str] = {}
        """Failures, by place and error type, as texts may differ from run to run."""
        self.scene: Scene | None = None
        self._given = UserInputs()
        self._first = 0
        self._match: Match | None = None
        self._numbering = Numbering()

    def before_stage(self, run: StageRun) -> None:
        self._numbering.number(run.graph, run.module)
        self._given.before_stage(run)

    def after_stage(self, run: StageRun) -> None:
        self._given.after_stage(run)

    def failed_stage(self, run: StageRun, error: Exception) -> None:
        self._given.after_stage(run)
        number = self._numbering.number(run.graph, run.module)
        key = (run.name, run.graph.role, run.graph.variant, number, type(error).__name__)
        self.failures[key] = f"the stage {run.name} failed: {type(error).__name__}: {error}"

    def most_matches(self, run: PassRun) -> int | None:
        return None if self.limit is None else self.limit - len(self.made)

    def _row(self, run: PassRun) -> list[Rewrite]:
        return self.required if run.step.required else self.made

    def before_pass(self, run: PassRun) -> None:
        self._first = len(self._row(run))
        self._match = None

    def before_match(self, run: PassRun, match: Match) -> None:
        self._match = match
        self._add(run, match.address)

    def after_pass(self, run: PassRun) -> None:
        if run.status == "changed" and len(self._row(run)) == self._first:
            self._add(run, run.address)
        self._keep_scene(run)

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        if len(self._row(run)) == self._first:
            self._add(run, run.address)
        number = self._numbering.number(run.context.graph, run.module)
        name = run.context.graph
        key = (run.address, name.role, name.variant, number, type(error).__name__)
        self.failures[key] = f"{run.address} failed: {run.reason}"
        self._keep_scene(run)

    def _add(self, run: PassRun, address: str) -> None:
        name = run.context.graph
        # Dynamo's compile id counts attempts, so it is left out.
        graph = GraphName(self._numbering.number(name, run.module), role=name.role, variant=name.variant)
        row = self._row(run)
        row.append(Rewrite(address, graph, len(row) - self._first))

    def _keep_scene(self, run: PassRun) -> None:
        """Stores the graph before the pass that made the last allowed rewrite."""
        is_last = self.limit is not None and len(self.made) == self.limit > self._first
        if run.step.required or not is_last or self.scene is not None:
            return
        module = run.before.module(run.module)
        try:
            inputs = next(self._given.inputs(run, module))
        except CannotRun:
            inputs = []
        match = self._match
        touched = [match.node, *(event.node for event in match.events)] if match is not None else []
        self.scene = Scene(Trial(run.step, run.context), module, inputs, list(dict.fromkeys(touched)))
