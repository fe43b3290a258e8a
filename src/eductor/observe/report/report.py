"""Converts an explanation to the data of the report, in the schema `eductor.report/1`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

from eductor.observe.report.nodes import Chain, Tables
from eductor.observe.report.partition import partition_data
from eductor.observe.report.passes import pass_runs
from eductor.observe.report.state import State
from eductor.pipeline.base import STAGES
from eductor.version import __version__

if TYPE_CHECKING:
    from eductor.observe.explain.explain import Explanation, StageView

SCHEMA = "eductor.report/1"
SEPARATE = ("plan", "curve", "timeline", "kernels")
"""Facts of stages that have separate pages."""
EARLIER = {"joint": "captured", "forward": "joint", "backward": "joint"}
"""The graph from which each graph is derived."""


def as_report(explanation: Explanation) -> dict[str, Any]:
    """The whole explanation as data of the report."""
    tables = Tables()
    graphs = [_Graph(explanation, number, tables).data() for number in explanation.graphs]
    names = dict.fromkeys(origin.function for origin in explanation.graphs.values())
    return {
        "schema": SCHEMA,
        "eductor": __version__,
        "torch": str(torch.__version__),
        "title": ", ".join(names) or "nothing was captured",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": explanation.seconds,
        "warnings": [{"graph": graph, "text": text} for graph, text in explanation.noted],
        "sources": tables.sources.rows,
        "modules": tables.modules.rows,
        "rules": tables.rules.rows,
        "graphs": graphs,
    }


class _Graph:
    """Collects the data of one captured graph through all stages."""

    def __init__(self, explanation: Explanation, number: int, tables: Tables) -> None:
        self._explanation = explanation
        self._number = number
        self._tables = tables
        self._chains: dict[tuple[str, str], Chain] = {}
        """The last stage with passes of each graph, by role and variant."""
        self._joint: Chain | None = None
        """The joint stage, whose node names the partitioner uses."""
        self._keys: Counter[str] = Counter()

    def data(self) -> dict[str, Any]:
        origin = self._explanation.graphs[self._number]
        views = self._explanation.stages(self._number)
        stages = [self._stage(view) for view in views]
        facts = {key: value for view in views for key, value in view.stage.facts.items() if key in SEPARATE[:3]}
        joint = self._joint
        return {
            "number": self._number,
            "function": origin.function,
            "kind": origin.kind,
            "description": str(origin),
            "source": origin.source or None,
            "compile_id": origin.compile_id,
            "stages": stages,
            "partition": partition_data(facts, joint.names if joint is not None else {}),
            "kernels": [kernel for view in views for kernel in self._kernels(view)],
        }

    def _stage(self, view: StageView) -> dict[str, Any]:
        stage = view.stage
        start: list[Any] = []
        passes: list[Any] = []
        result = None
        if stage.start is not None and (view.passes or stage.name in STAGES):
            earlier = (stage.role, stage.variant), (EARLIER.get(stage.role, ""), "")
            same, other = map(self._chains.get, earlier)
            chain = Chain(self._tables, same or other, is_same_graph=same is not None)
            start = list(chain.start(stage.start).values())
            state = State(start)
            passes = list(pass_runs(self._explanation, view, chain, state, self._tables))
            self._chains[stage.role, stage.variant] = chain
            self._joint = chain if stage.name == "joint" else self._joint
            result = len(state.nodes)
        elif view.passes:  # all of them were skipped
            passes = list(pass_runs(self._explanation, view, Chain(self._tables, None), State(), self._tables))
        return {
            "key": self._key(f"{self._number}/{stage.name}/{stage.role}"),
            "name": stage.name,
            "role": stage.role,
            "seconds": stage.seconds,
            "failure": stage.failure or None,
            "facts": {key: value for key, value in stage.facts.items() if key not in SEPARATE},
            "start": start,
            "result": result,
            "passes": passes,
        }

    def _key(self, key: str) -> str:
        """A unique key; a backward compiled again, for some undefined gradients, gets a number."""
        self._keys[key] += 1
        return key if self._keys[key] == 1 else f"{key}#{self._keys[key]}"

    def _kernels(self, view: StageView) -> list[dict[str, Any]]:
        chain = self._chains.get((view.stage.role, view.stage.variant))
        names = chain.names if chain is not None else {}
        return [
            {
                "name": kernel["name"],
                "role": view.stage.role,
                "language": kernel["language"],
                "code": kernel["code"],
                "nodes": [names[name] for name in kernel["nodes"] if name in names],
            }
            for kernel in view.stage.facts.get("kernels", ())
        ]
