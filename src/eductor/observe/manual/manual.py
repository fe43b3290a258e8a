"""The contents of the manual: the steps as rows, and the examples of passes before and after, by running them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from eductor.graph import capture, to_function
from eductor.graph.matches import Rejection
from eductor.options import Options
from eductor.patterns.explain.why_not import why_not
from eductor.patterns.pattern_pass import PatternPass
from eductor.pipeline import Context, Example, Instrument, Pass, PassRecord, Recorder, Registry, Stage, Step
from eductor.pipeline.runner import run_steps


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """An example before and after its pass."""

    before: str
    after: str
    module: GraphModule
    record: PassRecord


def run_example(
    pass_: Pass, stage: Stage, example: Example, *, dynamic: bool = False, inputs: list[Any] | None = None
) -> ExampleRun:
    """Captures an example in the dialect of the stage and runs the pass over it, strictly."""
    module = capture_example(stage, example, dynamic=dynamic, inputs=inputs)
    return run_pass(pass_.configured(**example.options), stage, module, facts=example.context)


def run_pass(
    pass_: Pass, stage: Stage, module: GraphModule, *instruments: Instrument, facts: Mapping[str, Any] | None = None
) -> ExampleRun:
    """Runs one pass over a graph, strictly, on whichever device the graph is; `facts` are fields of its context."""
    before = to_function(module.graph)
    recorder = Recorder()
    inference = pass_.contract.inference_only
    known = {"is_inference": inference, "packs": inference, **(facts or {})}
    context = Context(stage, Options(strict=True, debug=True), **known)
    run_steps([Step(stage, pass_.name, 1, "", "", pass_.anywhere())], stage, module, context, [recorder, *instruments])
    return ExampleRun(before, to_function(module.graph), module, recorder.records[0])


def capture_example(
    stage: Stage, example: Example, *, dynamic: bool = False, inputs: list[Any] | None = None
) -> GraphModule:
    """The graph of an example, as the pass sees it."""
    dialect = "torch" if stage == "pre_grad" else "aten"
    module = capture(example.fn, inputs or example.make_inputs(), dialect, dynamic=dynamic)  # type: ignore[arg-type]
    if example.prepare is not None:
        example.prepare(module)
        module.recompile()
    return module


def rows(registry: Registry, stage: str | None = None) -> list[dict[str, Any]]:
    """Each step in the order of execution, as plain data."""
    return [_row(step) for step in registry.steps() if stage in (None, step.stage)]


def _row(step: Step) -> dict[str, Any]:
    common = {
        "stage": step.stage,
        "name": step.name,
        "address": step.address,
        "reason": step.reason,
        "source": step.source,
    }
    if step.is_slot:
        purpose = "A place for your own passes."
        return {**common, "kind": "slot", "purpose": purpose, "numerics": "yours", "on": False, "version": ""}
    p = step.load()
    return {
        **common,
        "kind": "pass",
        "purpose": p.purpose,
        "numerics": p.contract.numerics,
        "on": p.on,
        "version": p.version,
    }


def nearest_misses(pass_: Pass, stage: Stage, example: Example) -> tuple[Rejection, ...]:
    """What comes nearest to a match of each rule of a pattern pass that does not match the example at all."""
    pass_ = pass_.configured(**example.options)
    if not isinstance(pass_, PatternPass):
        return ()
    found = why_not(pass_, capture_example(stage, example)).rules
    misses = [(name, answer.miss) for name, answer in found.items()]
    return tuple(Rejection(m.reason, (m.node.name,) if m.node is not None else (), name) for name, m in misses if m)
