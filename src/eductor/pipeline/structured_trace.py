"""Logs each stage and pass to torch's structured trace (TORCH_TRACE), where tlparse shows them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule

from eductor.compat import trace_artifact
from eductor.graph.text.printer import to_function
from eductor.pipeline.base import STAGES
from eductor.pipeline.instruments import Instrument, PassRun, StageRun


@dataclass
class Artifacts(Instrument):
    """Writes an artifact for a stage's input graph, for each pass that changes it, and for the stage's result."""

    _passes: list[dict[str, Any]] = field(default_factory=list)
    _last: PassRun | None = None

    def before_stage(self, run: StageRun) -> None:
        if run.name in STAGES:
            self._passes = []
            trace_artifact(f"{_name(run)}_graph", "string", lambda: _text(run.module))

    def after_stage(self, run: StageRun) -> None:
        data = {"seconds": run.seconds, "facts": run.facts}
        data |= {"passes": self._passes} if run.name in STAGES else {}
        trace_artifact(_name(run), "json", lambda: json.dumps(data, default=str, indent=0))

    def failed_stage(self, run: StageRun, error: Exception) -> None:
        failure = f"{type(error).__name__}: {error}"
        data = {"seconds": run.seconds, "failure": failure}
        trace_artifact(f"{_name(run)}_failed", "json", lambda: json.dumps(data, indent=0))

    def after_pass(self, run: PassRun) -> None:
        self._keep(run)
        if run.status == "changed":
            name = f"eductor_{run.step.stage}_{run.context.graph.role}_{len(self._passes):02}_{run.step.name}"
            trace_artifact(name, "string", lambda: _text(run.module))

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        self._keep(run)

    def skipped_pass(self, run: PassRun) -> None:
        self._keep(run)

    def _keep(self, run: PassRun) -> None:
        if run is self._last:  # logged before the pass was found to break its contract
            self._passes.pop()
        self._last = run
        counts = {"nodes_before": len(run.before), "nodes_after": len(run.module.graph.nodes)}
        data = {"address": run.address, "status": run.status, "reason": run.reason, "seconds": run.seconds}
        self._passes.append({**data, **counts, "matches": len(run.matches)})


def _name(run: StageRun) -> str:
    return f"eductor_{run.name}_{run.graph.role}"


def _text(module: GraphModule) -> str:
    """The graph as Python; a comment if printing fails, which must not fail the pass."""
    try:
        return to_function(module.graph)
    except Exception as error:
        return f"# it cannot be printed: {type(error).__name__}: {error}"
