"""An explanation as the data of the report, in the schema `eductor.report/1`."""

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
    from eductor.observe.explain.explain import Explanation, Told

SCHEMA = "eductor.report/1"
APART = ("plan", "curve", "timeline", "kernels")
"""Facts of stages that have pages of their own."""
EARLIER = {"joint": "captured", "forward": "joint", "backward": "joint"}
"""From which graph each is made."""


def as_report(explanation: Explanation) -> dict[str, Any]:
    """Everything that the explanation knows."""
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
    """One captured graph through all stages."""

    def __init__(self, explanation: Explanation, number: int, tables: Tables) -> None:
        self._explanation = explanation
        self._number = number
        self._tables = tables
        self._chains: dict[str, Chain] = {}
        """The last stage with passes of each role."""
        self._joint: Chain | None = None
        """The joint stage: the partitioner names the nodes that it left."""
        self._keys: Counter[str] = Counter()

    def data(self) -> dict[str, Any]:
        origin = self._explanation.graphs[self._number]
        told = self._explanation.stages(self._number)
        stages = [self._stage(each) for each in told]
        facts = {key: value for each in told for key, value in each.stage.facts.items() if key in APART[:3]}
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
            "kernels": [kernel for each in told for kernel in self._kernels(each)],
        }

    def _stage(self, told: Told) -> dict[str, Any]:
        stage = told.stage
        start: list[Any] = []
        passes: list[Any] = []
        result = None
        if stage.start is not None and (told.passes or stage.name in STAGES):
            same, other = (self._chains.get(role) for role in (stage.role, EARLIER.get(stage.role, "")))
            chain = Chain(self._tables, same or other, is_same_graph=same is not None)
            start = list(chain.start(stage.start).values())
            state = State(start)
            passes = list(pass_runs(self._explanation, told, chain, state, self._tables))
            self._chains[stage.role] = chain
            self._joint = chain if stage.name == "joint" else self._joint
            result = len(state.nodes)
        elif told.passes:  # all of them were skipped
            passes = list(pass_runs(self._explanation, told, Chain(self._tables, None), State(), self._tables))
        return {
            "key": self._key(f"{self._number}/{stage.name}/{stage.role}"),
            "name": stage.name,
            "role": stage.role,
            "seconds": stage.seconds,
            "failure": stage.failure or None,
            "facts": {key: value for key, value in stage.facts.items() if key not in APART},
            "start": start,
            "result": result,
            "passes": passes,
        }

    def _key(self, key: str) -> str:
        """A backward that is called with some gradients undefined is compiled once more: these are told apart."""
        self._keys[key] += 1
        return key if self._keys[key] == 1 else f"{key}#{self._keys[key]}"

    def _kernels(self, told: Told) -> list[dict[str, Any]]:
        chain = self._chains.get(told.stage.role)
        names = chain.names if chain is not None else {}
        return [
            {
                "name": kernel["name"],
                "role": told.stage.role,
                "language": kernel["language"],
                "code": kernel["code"],
                "nodes": [names[name] for name in kernel["nodes"] if name in names],
            }
            for kernel in told.stage.facts.get("kernels", ())
        ]
