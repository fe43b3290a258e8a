"""Tracks the user's inputs through a compile, to the placeholders of each graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from eductor.autograd.captured import Captured
from eductor.compat import number_at
from eductor.graph.snapshot import copy_of
from eductor.pipeline.instruments import PassRun, StageRun
from eductor.verification.execution import observe
from eductor.verification.samples import completed, fits, made_up


class UserInputs:
    """Inputs for each graph of a compile, from those of the captured graph. Held only during the compile."""

    def __init__(self, inputs: Sequence[Any] = ()) -> None:
        self._by_hand = list(inputs)
        self._captured: list[Any] = []
        self._primals: list[Any] = []
        self._forward: GraphModule | None = None
        self._values: dict[str, Any] | None = None

    def before_stage(self, run: StageRun) -> None:
        if run.name == "pre_grad":
            self._captured = _numbers(run.inputs)
        elif run.name == "autograd":
            self._primals = _numbers([*Captured(run.module).held, *run.inputs])
        elif run.name == "post_grad" and run.graph.role == "forward":
            self._forward, self._values = GraphModule(run.module, copy_of(run.module.graph)), None

    def after_stage(self, run: StageRun) -> None:
        if run.name == "link":
            self._captured, self._primals, self._forward, self._values = [], [], None, None

    def inputs(self, run: PassRun, module: GraphModule) -> Iterator[list[Any]]:
        """The user's inputs where they fit, completed with synthetic tangents; then synthetic inputs."""
        known = self._known(run, module)
        if any(x is not None for x in known):
            yield completed(module, known)
        numbers = [None if isinstance(x, torch.Tensor) else x for x in known]
        contract = run.step.load().contract
        yield from made_up(module, numbers, finite_parameters=contract.numerics != "exact", finite=contract.finite_only)

    def _known(self, run: PassRun, module: GraphModule) -> list[Any]:
        placeholders = module.graph.find_nodes(op="placeholder")
        role = run.context.graph.role
        if self._by_hand:
            found = self._by_hand
        elif role == "backward":
            found = [self._saved().get(p.name) for p in placeholders]
        else:
            given = self._captured if role == "captured" else self._primals
            found = [*given, *[None] * (len(placeholders) - len(given))]
        if len(found) != len(placeholders):
            return []
        return [x if x is not None and fits(x, p) else None for x, p in zip(found, placeholders, strict=True)]

    def _saved(self) -> dict[str, Any]:
        """The forward's values for the user's inputs, by the names of the backward's placeholders."""
        if self._values is None:
            self._values = {}
            if self._forward is not None:
                placeholders = self._forward.graph.find_nodes(op="placeholder")
                names = dict(zip((p.name for p in placeholders), self._primals, strict=False))
                try:
                    self._values = names | observe(self._forward, self._primals, keep=True).values
                except Exception:  # the graph does not take overlapping inputs
                    self._values = {}
        return self._values


def _numbers(inputs: Sequence[Any]) -> list[Any]:
    """The inputs with symbolic sizes replaced by their hints."""
    return [number_at(x, {}) for x in inputs]
