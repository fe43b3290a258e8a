"""Compares runs of the graph before and after a pass, by the numerics that the pass promises."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule

from eductor.graph.provenance import source_line
from eductor.graph.values.meta import tensor_of
from eductor.graph.values.value_comparison import unlike_bits, unlike_rounding
from eductor.pipeline.checks import ContractBroken
from eductor.pipeline.instruments import PassRun
from eductor.verification.execution import Observation, RunMode, observe


class Nondeterministic(Exception):
    """A graph whose results differ from run to run."""


def _with_strides_of(like: Any, value: Any) -> Any:
    """A tensor with the strides of another one, where they have the same shape and type."""
    if not isinstance(like, torch.Tensor) or not isinstance(value, torch.Tensor):
        return value
    if (like.shape, like.dtype, like.layout) != (value.shape, value.dtype, torch.strided):
        return value
    return torch.empty_strided(like.shape, like.stride(), dtype=value.dtype, device=value.device).copy_(value)


def _differ(a: Observation, b: Observation) -> bool:
    return any(unlike_bits(x, y) for (_, x), (_, y) in zip(a.facts(), b.facts(), strict=True))


@dataclass
class Comparison:
    """The graph before a pass and the one after it, run on the same inputs."""

    before: GraphModule
    run: PassRun
    inputs: Sequence[Any]
    problem: str = ""
    """Why the graph before the pass cannot run on the inputs; synthetic ones may be invalid for the program."""

    def holds(self) -> bool:
        """Raises ContractBroken if the graphs differ by more than the pass allows; False if the first one cannot run."""
        try:
            expected = self._observe(self.before)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}".split("\n")[0]
            return False
        try:
            got = self._observe(self.run.module)
        except Exception as error:
            raise ContractBroken(f"the graph before it runs, the graph after it raises {error!r}") from error
        unlike = self._first_unlike(expected, got)
        if not unlike:
            return True
        if _differ(expected, self._observe(self.before)):
            raise Nondeterministic("the graph before it gives another result each time")
        where = ""
        with suppress(Exception):  # a run that records every value may fail
            where = self._first_node()
        raise ContractBroken(f"{unlike}{where}")

    @property
    def _is_exact(self) -> bool:
        return self.run.step.load().contract.numerics != "reassociates"

    @property
    def _restrides(self) -> bool:
        return self.run.step.load().contract.restrides

    def _observe(self, module: GraphModule, *, wide: bool = False, keep: bool = False) -> Observation:
        captured = self.run.step.stage == "pre_grad"
        mode = RunMode(captured, captured and not self.run.context.is_inference)
        return observe(module, self.inputs, mode, wide=wide, keep=keep)

    def _first_unlike(self, expected: Observation, got: Observation) -> str:
        old, new = dict(expected.facts()), dict(got.facts())
        missing = next((name for name in [*old, *new] if name not in old or name not in new), None)
        if missing is not None:
            return f"only the graph {'before' if missing in old else 'after'} the pass has {missing}"
        for name in old:
            got_value = _with_strides_of(old[name], new[name]) if self._restrides else new[name]
            if unlike_bits(old[name], got_value):
                unlike = self._unlike(old[name], got_value, self._truth.get(name))
                if unlike:
                    return f"{name} differs: {unlike}"
        return ""

    def _unlike(self, a: Any, b: Any, truth: Any = None) -> str:
        return unlike_bits(a, b) if self._is_exact else unlike_rounding(a, b, truth, self._narrowest)

    @cached_property
    def _narrowest(self) -> torch.dtype | None:
        """The least precise dtype among the graph's values."""
        values = (tensor_of(node) for node in self.before.graph.nodes)
        return max(
            {v.dtype for v in values if v is not None and v.dtype.is_floating_point},
            key=lambda dtype: torch.finfo(dtype).eps,
            default=None,
        )

    @cached_property
    def _truth(self) -> dict[str, Any]:
        """The observations of a float64 run, if rounding may differ and the graph runs in float64."""
        if self._is_exact:
            return {}
        try:
            return dict(self._observe(self.before, wide=True).facts())
        except Exception:
            return {}

    def _first_node(self) -> str:
        """The first node whose value differs from before, or from that of the node that it replaced."""
        old, new = (self._observe(m, keep=True).values for m in (self.before, self.run.module))
        replaced = {
            event.detail.removeprefix("by "): event.node
            for match in self.run.matches
            for event in match.events
            if event.kind == "replaced"
        }
        for node in self.run.module.graph.nodes:
            was = node.name if node.name in old else replaced.get(node.name)
            if was in old and node.name in new and self._unlike(old[was], new[node.name]):
                line = source_line(node)
                return f"; the first node that differs is {node.name}" + (f" ({line})" if line else "")
        return ""
