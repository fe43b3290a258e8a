"""Converts an explanation to the data of the report, in the schema `eductor.report/1`, and to one HTML file.

The file is the explorer with the data inside, gzipped: it needs no server or network.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch

from eductor.errors import EductorError
from eductor.observe.report.nodes import Chain, Tables
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
    graphs = [_GraphData(explanation, number, tables).data() for number in explanation.graphs]
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


class _GraphData:
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
            {**kernel, "role": view.stage.role, "nodes": [names[name] for name in kernel["nodes"] if name in names]}
            for kernel in view.stage.facts.get("kernels", ())
        ]


LISTS = ("saved", "again", "others")
FIELDS = ("name", "bytes", "seconds", "instead", "reason", "ahead")


def partition_data(facts: Mapping[str, Any], names: Mapping[str, int]) -> dict[str, Any] | None:
    """The data of the page, from the facts of the stage; `names` are the ids of the nodes of the joint graph."""
    plan = facts.get("plan")
    if plan is None:
        return None
    values = {
        what: [{**{key: entry[key] for key in FIELDS}, "node": names.get(entry["name"])} for entry in plan[what]]
        for what in LISTS
    }
    timeline = [{**step, "node": names.get(step["name"])} for step in facts.get("timeline", ())]
    return {
        "budget": plan["budget"],
        "peak": plan["peak"],
        **values,
        "curve": facts.get("curve"),
        "timeline": timeline,
    }


PAGE = "explorer.html"
TAG = '<script id="report" type="application/octet-stream;base64">'
"""The element of the page that holds the data."""


def as_html(report: Mapping[str, Any]) -> str:
    """The page with this report."""
    before, tag, after = explorer().partition(TAG)
    return f"{before}{tag}{packed(report)}{after}"


def explorer() -> str:
    """The page without data; raises an error with instructions if the package lacks it."""
    page = files("eductor.observe.report").joinpath(PAGE)
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    if text.count(TAG) != 1:
        what = "has no place for the data" if text else "is missing"
        raise EductorError(f"{PAGE}, the page of the report, {what}: `make explorer` builds it in a clone of Eductor.")
    return text


def packed(report: Mapping[str, Any]) -> str:
    """The data as the page reads them: JSON, gzipped, in base64."""
    text = json.dumps(report, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
