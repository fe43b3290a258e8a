"""Observes stock Inductor's compile of a function as stages and passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

from torch.fx import GraphModule

from eductor.compat import compile_id, isolated_compile
from eductor.engines.inductor.stock import compile_watched
from eductor.graph.snapshot import Snapshot
from eductor.graph.values.meta import CAME_FROM
from eductor.observe.scripts.interception import CompiledFunction
from eductor.options import Options
from eductor.pipeline.base import Context, GraphName, Role, Stage
from eductor.pipeline.instruments import FlowStage, Instrument, PassRun, StageRun, watched
from eductor.pipeline.steps import Step

UNNAMED = "between_passes"
"""The pass name of changes between passes."""
_numbers = count(-1, -1)  # Eductor's own compiles count up


def compile_with_stock(found: CompiledFunction, instruments: Sequence[Instrument]) -> Callable[..., Any]:
    """Compiles a function with Inductor, and notifies instruments."""

    def inductor(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        watcher = _Watcher(instruments, GraphName(next(_numbers), compile_id()))
        return compile_watched(module, inputs, found.settings, watcher)

    return isolated_compile(found.fn, backend=inductor, **found.keywords)


@dataclass
class _Watcher:
    """Notifies instruments of the stages and passes of one captured graph."""

    instruments: Sequence[Instrument]
    graph: GraphName
    _open: list[_Stage] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, role: str, module: GraphModule) -> Iterator[dict[str, Any]]:
        if name == "post_grad":
            for node in module.graph.nodes:  # Inductor's partitioner keeps the names of the joint graph
                node.meta.setdefault(CAME_FROM, (node.name,))
        graph = replace(self.graph, role=cast(Role, role))
        run = StageRun(cast(FlowStage, name), graph, module)
        with watched(run, self.instruments):
            stage = _Stage(cast(Stage, name), graph, module, Snapshot(module.graph), self.instruments)
            self._open.append(stage)
            try:
                yield run.facts
                if name != "engine":
                    stage.catch_up()
            finally:
                self._open.pop()

    @contextmanager
    def run_pass(self, name: str, module: GraphModule) -> Iterator[None]:
        if not self._open or self._open[-1].module is not module:  # the body of an operator
            yield
            return
        with self._open[-1].run_pass(name):
            yield


@dataclass
class _Stage:
    """A running stage, with the graph as last seen."""

    name: Stage
    graph: GraphName
    module: GraphModule
    seen: Snapshot
    instruments: Sequence[Instrument]
    _numbers: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def run_pass(self, name: str) -> Iterator[None]:
        self.catch_up()
        run = self._run(name)
        started = time.perf_counter()
        yield
        run.seconds = time.perf_counter() - started
        self._finish(run)

    def catch_up(self) -> None:
        """Reports changes between two passes as an unnamed pass."""
        if not self.seen.is_same(self.module.graph):
            self._finish(self._run(UNNAMED))

    def _run(self, name: str) -> PassRun:
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        step = Step(self.name, name, number, "the order of torch's Inductor", "torch")
        context = Context(self.name, Options(), is_inference=False, graph=self.graph)
        run = PassRun(step, context, self.module, self.seen)
        for instrument in self.instruments:
            instrument.before_pass(run)
        return run

    def _finish(self, run: PassRun) -> None:
        changed = not self.seen.is_same(self.module.graph)
        run.status = "changed" if changed else "unchanged"
        if changed:
            self.seen = run.after = Snapshot(self.module.graph)
        for instrument in self.instruments:
            instrument.after_pass(run)
