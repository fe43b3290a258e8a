"""Logs each stage and pass to torch's structured trace (TORCH_TRACE), where tlparse shows them."""

from __future__ import annotations

import json
from typing import Any

from torch.fx import GraphModule

from eductor.compat import trace_artifact
from eductor.graph.text.printer import to_function
from eductor.pipeline.base import STAGES
from eductor.pipeline.instruments import PassRun, StageRun
from eductor.pipeline.recorder import PassRecord, Recorder


class Artifacts(Recorder):
    """Writes an artifact for a stage's input graph, for each pass that changes it, and for the stage's result."""

    def before_stage(self, run: StageRun) -> None:
        super().before_stage(run)
        self.records.clear()
        if run.name in STAGES:
            trace_artifact(f"{_name(run)}_graph", "string", lambda: _text(run.module))

    def after_stage(self, run: StageRun) -> None:
        super().after_stage(run)
        data = {"seconds": run.seconds, "facts": run.facts}
        data |= {"passes": list(map(_pass, self.records))} if run.name in STAGES else {}
        trace_artifact(_name(run), "json", lambda: json.dumps(data, default=str, indent=0))

    def failed_stage(self, run: StageRun, error: Exception) -> None:
        super().failed_stage(run, error)
        failure = f"{type(error).__name__}: {error}"
        data = {"seconds": run.seconds, "failure": failure}
        trace_artifact(f"{_name(run)}_failed", "json", lambda: json.dumps(data, indent=0))

    def after_pass(self, run: PassRun) -> None:
        super().after_pass(run)
        if run.status == "changed":
            name = f"eductor_{run.step.stage}_{run.context.graph.role}_{len(self.records):02}_{run.step.name}"
            trace_artifact(name, "string", lambda: _text(run.module))


def _pass(r: PassRecord) -> dict[str, Any]:
    counts = {"nodes_before": r.nodes_before, "nodes_after": r.nodes_after, "matches": len(r.matches)}
    return {"address": r.address, "status": r.status, "reason": r.reason, "seconds": r.seconds, **counts}


def _name(run: StageRun) -> str:
    return f"eductor_{run.name}_{run.graph.role}"


def _text(module: GraphModule) -> str:
    """The graph as Python; a comment if printing fails, which must not fail the pass."""
    try:
        return to_function(module.graph)
    except Exception as error:
        return f"# it cannot be printed: {type(error).__name__}: {error}"
