"""The manual of the passes, made from the registry: every page shows its examples before and after by running them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch.fx import GraphModule

from eductor.graph.capture import capture
from eductor.graph.printer import to_function
from eductor.options import Options
from eductor.pipeline.base import Context, Example, Pass, Stage, describe_options
from eductor.pipeline.instruments import Instrument
from eductor.pipeline.recorder import PassRecord, Recorder
from eductor.pipeline.registry import Registry, Step
from eductor.pipeline.runner import run_steps


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """An example after its pass ran over it."""

    before: str
    after: str
    module: GraphModule
    record: PassRecord


def run_example(
    pass_: Pass, stage: Stage, example: Example, *, dynamic: bool = False, inputs: list[Any] | None = None
) -> ExampleRun:
    """Captures an example in the dialect of the stage and runs the pass over it, strictly."""
    return run_pass(
        pass_.configured(**example.options), stage, capture_example(stage, example, dynamic=dynamic, inputs=inputs)
    )


def run_pass(pass_: Pass, stage: Stage, module: GraphModule, *instruments: Instrument) -> ExampleRun:
    """Runs one pass over a graph, strictly, on whichever device the graph is."""
    before = to_function(module.graph)
    recorder = Recorder()
    context = Context(
        stage,
        Options(strict=True, debug=True),
        is_inference=pass_.contract.inference_only,
        packs=pass_.contract.inference_only,
    )
    run_steps([Step(stage, pass_.name, 1, "", "", pass_.anywhere())], stage, module, context, [recorder, *instruments])
    return ExampleRun(before, to_function(module.graph), module, recorder.records[0])


def capture_example(
    stage: Stage, example: Example, *, dynamic: bool = False, inputs: list[Any] | None = None
) -> GraphModule:
    """The graph of an example, as the pass is going to see it."""
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


def page(registry: Registry, name: str) -> str:
    """The page of a pass or a slot, in Markdown; of a name that several stages have for passes of their own, each."""
    steps = [s for s in registry.steps() if s.is_called(name)]
    if steps[0].is_slot:
        return (
            f"# {steps[0].name}\n\nA place for your own passes.\n\n## Where it stands\n{_places(steps)}\n\n"
            f"## How to fill it\n```python\n{_filling(steps[0])}\n```\n"
        )
    own: dict[Pass, list[Step]] = {}
    for step in steps:
        own.setdefault(step.load(), []).append(step)
    return "\n".join(_page(p, several) for p, several in own.items())


def _filling(slot: Step) -> str:
    if slot.name in {option.name for option in fields(Options)}:
        return f'torch.compile(model, backend="eductor", options={{"{slot.name}": [my_pass]}})'
    return f'@eductor.graph_pass(stage="{slot.stage}", numerics="exact", slot="{slot.name}")\ndef my_pass(graph, rewrite): ...'


def _places(steps: list[Step]) -> str:
    return "\n".join(f"- `{s.address}`: {s.reason}" for s in steps)


def _page(p: Pass, steps: list[Step]) -> str:
    step = steps[0]
    options = (
        f"\n- **options**: `{describe_options({n: o.default for n, o in p.parameters.items()})}`"
        if p.parameters
        else ""
    )
    parts = [
        f"# {p.name}\n\n{_doc(p)}",
        f"## Where it stands\n{_places(steps)}",
        f"## Contract\n- **numerics**: {p.contract}\n- **on by default**: {'yes' if p.on else 'no'}"
        f"\n- **version**: `{p.version}`{options}",
        *(_shown(p, step.stage, e) for e in p.examples),
        *(_shown(p, step.stage, e) for e in p.refusals),
    ]
    return "\n\n".join(parts) + "\n"


def _doc(p: Pass) -> str:
    return (p.fn.__doc__ or p.purpose).strip().replace("\n    ", "\n")


def _shown(p: Pass, stage: Stage, example: Example) -> str:
    ran = run_example(p, stage, example)
    title = example.name.replace("_", " ")
    title += f", with `{p.name}{describe_options(example.options)}`" if example.options else ""
    if example.because:
        why = "; ".join(r.reason for r in ran.record.rejects)
        return f"## Left alone: {title}\n```python\n{ran.before}```\nIts reason: {why}."
    return f"## Example: {title}\nBefore:\n```python\n{ran.before}```\nAfter:\n```python\n{ran.after}```"
