"""An explanation as text for a terminal: each graph, its stages in order, the passes in each, and the totals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eductor.observe.table import indent, stage_table
from eductor.pipeline.recorder import StageRecord

if TYPE_CHECKING:
    from eductor.observe.explain.explain import Explanation, StageView

NOTHING = (
    "No graph was captured: the function computes nothing with tensors, or Dynamo cannot trace it "
    '(TORCH_LOGS="graph_breaks" says why).'
)


def as_text(explanation: Explanation) -> str:
    """The whole explanation as text."""
    blocks = ["\n".join(_graph(explanation, number)) for number in explanation.graphs] or [NOTHING]
    stray = [f"warning: {text}" for graph, text in explanation.noted if graph not in explanation.graphs]
    return "\n\n".join([*blocks, *stray, _totals(explanation)])


def _graph(explanation: Explanation, number: int) -> Iterator[str]:
    origin = explanation.graphs[number]
    yield f"Graph {number} [{origin.compile_id}]: {origin}"
    if origin.source:
        yield f"  starts at {origin.source}"
    stages = explanation.stages(number)
    for each in stages:
        yield from _stage(each)
    ran = {(t.stage.name, t.stage.role) for t in stages}
    if ("post_grad", "backward") in ran and ("engine", "backward") not in ran:
        yield "  engine, backward: not yet compiled, as no backward was run"
    for graph, text in explanation.noted:
        if graph == number:
            yield indent(f"warning: {text}")


def _stage(shown: StageView) -> Iterator[str]:
    stage = shown.stage
    role = f", {stage.role} {stage.variant}".rstrip() if stage.role in ("forward", "backward") else ""
    took = f" ({milliseconds(stage.seconds)})" if not stage.facts.get("left_out") else ""
    yield f"  {stage.name}{role}: {_facts(stage)}{took}"
    if stage.failure:
        yield indent(f"FAILED: {stage.failure}", "    ")
    if shown.passes:
        yield indent(stage_table(shown.passes), "    ")


def _facts(stage: StageRecord) -> str:
    """The facts of a stage, in words."""
    facts = stage.facts
    if facts.get("left_out"):
        return "left out"
    if "engine" in facts:
        return f"{facts['engine']} compiled {_count(stage.nodes, 'node')}"
    if "gradients" in facts:
        gradients = _count(facts["gradients"], "gradient") if facts["gradients"] else "no gradients"
        packed = f", {_count(facts['packed'], 'weight')} packed once" if facts["packed"] else ""
        return f"{_count(stage.nodes, 'node')} traced to a joint graph of {facts['nodes']}, {gradients}{packed}"
    if "backward_nodes" in facts:
        return (
            f"{_count(stage.nodes, 'node')} split into {facts['forward_nodes']} forward and "
            f"{facts['backward_nodes']} backward; saved: {_saved(facts)}"
        )
    if "forward_nodes" in facts:
        return f"{_count(facts['forward_nodes'], 'node')} forward, no backward"
    if "launches" in facts:
        return f"{_count(stage.nodes, 'node')}, launches {facts['launches']}"
    return _count(stage.nodes, "node")


def _saved(facts: dict[str, Any]) -> str:
    values = f"{_count(facts['saved_values'], 'value')} of {human_bytes(facts['saved_bytes'])}"
    kept = [_count(facts["saved_inputs"], "input")] if facts["saved_inputs"] else []
    kept += [values] if facts["saved_values"] else []
    return ", ".join(kept) or "nothing"


def _totals(explanation: Explanation) -> str:
    recorder = explanation.recorder
    by_stage: dict[str, float] = {}
    for stage in recorder.stages:
        by_stage[stage.name] = by_stage.get(stage.name, 0.0) + stage.seconds
    by_pass: dict[str, float] = {}
    for record in recorder.records:
        by_pass[record.address] = by_pass.get(record.address, 0.0) + record.seconds
    parts = [
        f"{_count(len(explanation.graphs), 'graph')} in {milliseconds(explanation.seconds)}, run included",
        "stages: " + (", ".join(f"{name} {milliseconds(s)}" for name, s in by_stage.items()) or "none"),
    ]
    if by_pass:
        slowest = max(by_pass, key=by_pass.__getitem__)
        parts.append(f"slowest pass: {slowest} ({milliseconds(by_pass[slowest])})")
    failed = [f"{s.name} of graph {s.graph}" for s in recorder.stages if s.failure]
    failed += [f"{r.address} in graph {r.graph} ({r.role})" for r in recorder.records if r.status == "failed"]
    parts.append(f"failed: {', '.join(failed) or 'nothing'}")
    return "Total: " + "; ".join(parts) + "."


def milliseconds(seconds: float) -> str:
    """Formats a time."""
    return f"{1000 * seconds:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def human_bytes(size: int | None) -> str:
    """Formats an amount of memory; None is one that depends on unknown sizes."""
    if size is None:
        return "an unknown size"
    amount, units = float(size), ["bytes", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{size} bytes" if units[0] == "bytes" else f"{amount:.1f} {units[0]}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
