"""An explanation as plain data, in the schema that `docs/explain_json.md` describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from eductor.graph import Snapshot, to_function
from eductor.graph.matches import Match
from eductor.pipeline.recorder import PassRecord
from eductor.version import __version__

if TYPE_CHECKING:
    from eductor.observe.explain.explain import Explanation, StageView

SCHEMA = "eductor.explain/1"


def as_data(explanation: Explanation) -> dict[str, Any]:
    """The whole explanation as plain data."""
    return {
        "schema": SCHEMA,
        "eductor": __version__,
        "torch": str(torch.__version__),
        "graphs": [_graph(explanation, number) for number in explanation.graphs],
        "warnings": [{"graph": graph, "text": text} for graph, text in explanation.noted],
        "seconds": explanation.seconds,
    }


def _graph(explanation: Explanation, number: int) -> dict[str, Any]:
    origin = explanation.graphs[number]
    return {
        "number": number,
        "compile_id": origin.compile_id,
        "function": origin.function,
        "kind": origin.kind,
        "recompile_of": origin.recompile_of,
        "recompile_reason": origin.recompile_reason or None,
        "description": str(origin),
        "source": origin.source or None,
        "stages": [_stage(explanation, shown) for shown in explanation.stages(number)],
    }


def _stage(explanation: Explanation, shown: StageView) -> dict[str, Any]:
    stage = shown.stage
    return {
        "name": stage.name,
        "role": stage.role,
        "variant": stage.variant or None,
        "seconds": stage.seconds,
        "nodes": stage.nodes,
        "facts": stage.facts,
        "failure": stage.failure or None,
        "began": stage.began,
        "passes": [{**_pass(record), "verified": explanation.verdict(record)} for record in shown.passes],
        "result": _text(shown.result),
    }


def _pass(r: PassRecord) -> dict[str, Any]:
    kept = {"before": _text(r.before), "after": _text(r.after)}
    return {**pass_data(r), "stage": r.stage, "began": r.began, "matches": list(map(match_data, r.matches)), **kept}


def pass_data(r: PassRecord) -> dict[str, Any]:
    """What a pass did, without its matches, as the record and the report have it."""
    return {
        "address": r.address,
        "name": r.name,
        "status": r.status,
        "reason": r.reason or None,
        "nodes_before": r.nodes_before,
        "nodes_after": r.nodes_after,
        "seconds": r.seconds,
        "rejects": [{"rule": x.rule or None, "nodes": list(x.nodes), "reason": x.reason} for x in r.rejects],
    }


def match_data(match: Match) -> dict[str, Any]:
    """What a match did, as the record and the report have it."""
    return {
        "address": match.address,
        "rule": match.rule or None,
        "node": match.node,
        "note": match.note or None,
        "events": [{"kind": e.kind, "node": e.node, "detail": e.detail} for e in match.events],
    }


def _text(snapshot: Snapshot | None) -> str | None:
    return None if snapshot is None else to_function(snapshot.graph())


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
