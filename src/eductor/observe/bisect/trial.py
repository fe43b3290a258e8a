"""Runs one pass on one graph, checked against its contract: for reducing a bisection, and in its reproducer."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule

from eductor.errors import PassFailed
from eductor.graph.snapshot import copy_of
from eductor.pipeline.base import Context
from eductor.pipeline.runner import run_steps
from eductor.pipeline.steps import Step
from eductor.verification.verifier import Verifier


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
