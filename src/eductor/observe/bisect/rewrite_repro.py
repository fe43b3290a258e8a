"""Reproducers of bisections: runnable files with a graph, its inputs, and two pipelines that differ by one rewrite.

A `Trial` runs such a pass, checked against its contract.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from eductor.errors import PassFailed
from eductor.graph.snapshot import copy_of
from eductor.graph.text.printer import to_python
from eductor.observe.diff.pass_diff import diff_of_graphs
from eductor.pipeline import Pipeline, Stage
from eductor.pipeline.base import Context
from eductor.pipeline.replay import rebuilt_context, rebuilt_module, rebuilt_step
from eductor.pipeline.reproducer import attributes_of, fill, place_for
from eductor.pipeline.runner import run_steps
from eductor.pipeline.steps import Step
from eductor.verification.verifier import Verifier

_TEMPLATE = """# {title}
#
# Right: {right}
# Wrong: {wrong}
# Run `python {name}` to see both on this graph.

import sys
from pathlib import Path

from eductor.observe.bisect.rewrite_repro import replay_rewrite

GRAPH = {graph}

if __name__ == "__main__":
    sys.exit(
        replay_rewrite(
            GRAPH,
            stage={stage!r},
            pass_={where!r},
            home={home!r},
            options={options!r},
            context={context!r},
            matches={matches!r},
            tensors=Path(__file__).with_suffix(".pt"),
        )
    )
"""


def write_rewrite_repro(
    trial: Trial,
    module: GraphModule,
    inputs: Sequence[Any],
    matches: int,
    title: str,
    folder: str | os.PathLike[str] | None,
) -> str:
    """Writes a reproducer for the match of this number on a graph, and its tensors beside it; returns the path."""
    text = to_python(module.graph)
    path = place_for(folder, f"{trial.step.address}@{matches - 1}", text)
    torch.save({"inputs": list(inputs), "attributes": attributes_of(module, module.graph)}, path.with_suffix(".pt"))
    right, wrong = (Pipeline((trial.step,)).limited(trial.step.name, k) for k in (matches - 1, matches))
    shown = {"title": title, "right": right.text(), "wrong": wrong.text(), "matches": matches}
    return fill(path, _TEMPLATE, text, trial.step.load(), trial.context, **shown)


def replay_rewrite(
    graph: str,
    *,
    stage: Stage,
    pass_: str,
    home: str,
    options: Mapping[str, Any],
    context: Mapping[str, Any],
    matches: int,
    tensors: str | Path,
) -> int:
    """Runs a pass on a printed graph without and with its last match; returns 1 if only the latter is wrong."""
    # The file was written with the reproducer, so it is as trusted as that.
    saved = torch.load(tensors, weights_only=False)
    module = rebuilt_module(graph, saved["attributes"])
    trial = Trial(rebuilt_step(stage, pass_, home, options), rebuilt_context(stage, context))
    results = []
    for count in (matches - 1, matches):
        made, _, _ = trial.run(module, matches=count, checked=False)
        results.append((made, trial.failure(module, saved["inputs"], count)))
    (right, unexpected), (wrong, failure) = results
    print("\n".join(diff_of_graphs(right.graph, wrong.graph) or ["Both graphs are the same."]))
    for count, found in ((matches - 1, unexpected), (matches, failure)):
        outcome = "nothing is wrong" if found is None else f"{found[0]}: {found[1]}"
        print(f"with {count} matches of {trial.step.address}: {outcome}", file=sys.stderr)
    return 1 if failure is not None and unexpected is None else 0


@dataclass(frozen=True)
class Trial:
    """A pass with its context, to be run on graphs and verified."""

    step: Step
    context: Context

    def failure(self, module: GraphModule, inputs: Sequence[Any], matches: int | None = None) -> tuple[str, str] | None:
        """What is wrong with the first matches of the pass on a copy of a graph, as kind and text; None if nothing."""
        _, verifier, error = self.run(module, inputs, matches)
        if error is None:
            return None
        kind = verifier.findings[0].check if verifier.findings else type(error.__cause__).__name__
        return kind, str(error.__cause__)

    def run(
        self, module: GraphModule, inputs: Sequence[Any] = (), matches: int | None = None, *, checked: bool = True
    ) -> tuple[GraphModule, Verifier, PassFailed | None]:
        """Runs the first matches of the pass on a copy of a graph; returns the copy, its verifier, and the failure."""
        copy = GraphModule(module, copy_of(module.graph))
        verifier = Verifier(inputs)
        with tempfile.TemporaryDirectory() as folder:  # a failing pass writes a reproducer, unneeded here
            options = replace(self.context.options, strict=True, repro_dir=folder, instruments=())
            context = replace(self.context, options=options)
            try:
                step = replace(self.step, limit=matches)
                run_steps([step], self.step.stage, copy, context, [verifier] if checked else [])
            except PassFailed as error:
                return copy, verifier, error
        return copy, verifier, None
