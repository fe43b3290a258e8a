"""The times of stages and passes in Chrome's trace format, which Perfetto reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eductor.observe.explain.explain import Explanation

MICROSECONDS = 1e6


def as_chrome_trace(explanation: Explanation) -> dict[str, Any]:
    """A trace with a track for each graph; stages nest as they ran, and passes are inside their stages."""
    events: list[dict[str, Any]] = [_named("process_name", 0, "eductor")]
    for number, origin in explanation.graphs.items():
        events.append(_named("thread_name", number, f"graph {number}: {origin.part}"))
        for shown in explanation.stages(number):
            stage = shown.stage
            if stage.facts.get("left_out"):
                continue
            args = {"nodes": stage.nodes, "failure": stage.failure or None}
            name = f"{stage.name} ({f'{stage.role} {stage.variant}'.rstrip()})"
            events.append(_event(name, "stage", number, stage.began, stage.lasted, args))
            for r in shown.passes:
                if r.status != "skipped":
                    counts = {"nodes_before": r.nodes_before, "nodes_after": r.nodes_after}
                    found = {"status": r.status, "matches": len(r.matches), **counts}
                    events.append(_event(r.address, "pass", number, r.began, r.seconds, found))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(name: str, kind: str, graph: int, began: float, lasted: float, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": began * MICROSECONDS, "dur": lasted * MICROSECONDS}
    return {"name": name, "cat": kind, "ph": "X", "pid": 0, "tid": graph, **times, "args": args}


def _named(what: str, graph: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 0, "tid": graph, "args": {"name": name}}
