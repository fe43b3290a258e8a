"""The graph before a pass and the graph after it, run on the same inputs and compared by what the pass promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule

from eductor.graph.rewriter import source_line
from eductor.graph.values.meta import tensor_of
from eductor.graph.values.value_comparison import unlike_bits, unlike_rounding
from eductor.observe.verify.execution import Manner, Observation, observe
from eductor.pipeline.checks import ContractBroken
from eductor.pipeline.instruments import PassRun


class Unsteady(Exception):
    """A graph that gives another result each time."""


def _differ(a: Observation, b: Observation) -> bool:
    return any(unlike_bits(x, y) for (_, x), (_, y) in zip(a.facts(), b.facts(), strict=True))


@dataclass
class Comparison:
    """The graph before a pass and the one after it, run on the same inputs."""

    before: GraphModule
    run: PassRun
    inputs: Sequence[Any]
    problem: str = ""
    """Why the graph before the pass cannot run on the inputs; made-up ones need not suit the program."""

    def holds(self) -> bool:
        """Raises where the graphs differ by more than the pass may make them; False where the first one cannot run."""
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
            raise Unsteady("the graph before it gives another result each time")
        raise ContractBroken(f"{unlike}{self._named_node()}")

    def _named_node(self) -> str:
        """Where the difference begins; a run that keeps every value may fail where others did not."""
        try:
            return self._first_node()
        except Exception:
            return ""

    @property
    def _is_exact(self) -> bool:
        return self.run.step.load().contract.numerics != "reassociates"

    def _observe(self, module: GraphModule, *, wide: bool = False, keep: bool = False) -> Observation:
        captured = self.run.step.stage == "pre_grad"
        manner = Manner(captured, captured and not self.run.context.is_inference)
        return observe(module, self.inputs, manner, wide=wide, keep=keep)

    def _first_unlike(self, expected: Observation, got: Observation) -> str:
        old, new = dict(expected.facts()), dict(got.facts())
        missing = next((name for name in [*old, *new] if name not in old or name not in new), None)
        if missing is not None:
            return f"only the graph {'before' if missing in old else 'after'} the pass has {missing}"
        for name in old:
            if unlike_bits(old[name], new[name]):
                unlike = self._unlike(old[name], new[name], self._truth.get(name))
                if unlike:
                    return f"{name} differs: {unlike}"
        return ""

    def _unlike(self, a: Any, b: Any, truth: Any = None) -> str:
        return unlike_bits(a, b) if self._is_exact else unlike_rounding(a, b, truth, self._narrowest)

    @cached_property
    def _narrowest(self) -> torch.dtype | None:
        """The dtype that rounds most among those of the values of the graph."""
        values = (tensor_of(node) for node in self.before.graph.nodes)
        return max(
            {v.dtype for v in values if v is not None and v.dtype.is_floating_point},
            key=lambda dtype: torch.finfo(dtype).eps,
            default=None,
        )

    @cached_property
    def _truth(self) -> dict[str, Any]:
        """What a run in float64 gives, where roundings may differ and the graph can be run so."""
        if self._is_exact:
            return {}
        try:
            return dict(self._observe(self.before, wide=True).facts())
        except Exception:
            return {}

    def _first_node(self) -> str:
        """The first node whose value differs from what it was, or from that of the node that it replaced."""
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
