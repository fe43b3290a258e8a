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
    return {
        "address": r.address,
        "stage": r.stage,
        "name": r.name,
        "status": r.status,
        "reason": r.reason or None,
        "nodes_before": r.nodes_before,
        "nodes_after": r.nodes_after,
        "seconds": r.seconds,
        "began": r.began,
        "matches": [_match(match) for match in r.matches],
        "rejects": [{"rule": x.rule or None, "nodes": list(x.nodes), "reason": x.reason} for x in r.rejects],
        "before": _text(r.before),
        "after": _text(r.after),
    }


def _match(match: Match) -> dict[str, Any]:
    events = [{"kind": e.kind, "node": e.node, "detail": e.detail} for e in match.events]
    return {
        "address": match.address,
        "rule": match.rule or None,
        "node": match.node,
        "note": match.note or None,
        "events": events,
    }


def _text(snapshot: Snapshot | None) -> str | None:
    return None if snapshot is None else to_function(snapshot.graph())
