"""Benchmarks an idle pipeline: every pass of every stage, on graphs in which none finds anything to rewrite.

python bench/idle_pipeline.py [--json] [--sizes 1000,10000,50000] [--repeats 5]

Each measurement uses a new graph, the sizes take turns, and the garbage collector runs as usual. Its collections count as
time of the stage; in the table of the passes they have a separate row, since any pass may trigger them. The exit code is 1
if a stage takes more than 1.5 times as long per node in the largest graph as in the smallest one.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node

import eductor
from eductor.graph import Snapshot
from eductor.observe.table import as_text
from eductor.pipeline import STAGES, Context, PassRun, Registry, Stage

SIZES = (1_000, 10_000, 50_000)
REPEATS = 5
LIMIT = 1.5
PARTS = ("(generating code)", "(garbage collection)", "(the rest of the runner)")


# ------------------------------------------------------------------------------------------------------- the graphs


@dataclass(frozen=True)
class Dialect:
    """The operators of the synthetic graphs in the dialect of a stage, and the meta key of their fake values."""

    sin: Callable[..., Any]
    cos: Callable[..., Any]
    add: Callable[..., Any]
    mul: Callable[..., Any]
    value_key: str


TORCH = Dialect(torch.sin, torch.cos, torch.add, torch.mul, "example_value")
ATEN = Dialect(
    torch.ops.aten.sin.default,
    torch.ops.aten.cos.default,
    torch.ops.aten.add.Tensor,
    torch.ops.aten.mul.Tensor,
    "val",
)


def make_graph(stage: Stage, size: int) -> GraphModule:
    """A graph of `size` nodes: branches that join again, and read older values. Every value is used."""
    dialect = TORCH if stage == "pre_grad" else ATEN
    graph, mode = Graph(), FakeTensorMode()

    def valued(node: Node) -> Node:
        node.meta[dialect.value_key] = FakeTensor(mode, torch.empty(8, 8, device="meta"), torch.device("cpu"))
        return node

    inputs = [valued(graph.placeholder(f"x{i}")) for i in range(4)]
    values = list(inputs)
    calls = size - len(inputs) - 1
    for i in range(calls):
        last, older = values[-1], values[max(0, len(values) - 5 - i % 13)]
        if calls - i < 4:
            values.append(valued(graph.call_function(dialect.add, (last, older))))
        elif i % 4 == 0:
            values.append(valued(graph.call_function(dialect.sin, (last,))))
        elif i % 4 == 1:
            values.append(valued(graph.call_function(dialect.cos, (values[-2],))))
        elif i % 4 == 2:
            values.append(valued(graph.call_function(dialect.add, (values[-2], last))))
        else:
            values.append(valued(graph.call_function(dialect.mul, (last, older))))
    graph.output((values[-1],))
    module = GraphModule(torch.nn.Module(), graph)
    assert len(graph.nodes) == size
    assert all(n.users for n in graph.nodes if n.op == "call_function")
    return module


# -------------------------------------------------------------------------------------------------- the measurement


class Watch(eductor.Instrument):
    """Records the status of each pass, and the time of code generation after the last one and of garbage collection."""

    def __init__(self) -> None:
        self.status: dict[str, str] = {}
        self.collecting = 0.0
        self.collecting_in: dict[str, float] = {}
        self.generating = 0.0
        self._mark = self._last_pass = self._collection_started = 0.0

    def collector(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._collection_started = now
        else:
            self.collecting += now - self._collection_started

    def before_pipeline(self, stage: Stage, module: GraphModule) -> None:
        self._last_pass = time.perf_counter()

    def before_pass(self, run: PassRun) -> None:
        self._mark = self.collecting

    def after_pass(self, run: PassRun) -> None:
        self._ended(run, run.status)

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        self._ended(run, f"failed: {error!r}")

    def skipped_pass(self, run: PassRun) -> None:
        self.status[run.address] = f"skipped: {run.reason}"

    def _ended(self, run: PassRun, status: str) -> None:
        self.status[run.address] = status
        self.collecting_in[run.address] = self.collecting - self._mark
        self._last_pass, self._mark = time.perf_counter(), self.collecting

    def after_pipeline(self, stage: Stage, module: GraphModule) -> None:
        self.generating = time.perf_counter() - self._last_pass - (self.collecting - self._mark)


@dataclass(frozen=True)
class Measurement:
    """One stage, or one of its passes, on graphs of one size: seconds of the best and of the median run."""

    name: str
    nodes: int
    best: float
    median: float

    @property
    def per_node(self) -> float:
        """Microseconds per node, in the best run."""
        return 1e6 * self.best / self.nodes


@dataclass(frozen=True)
class Report:
    """All measurements of one run of the benchmark."""

    stages: list[Measurement]
    passes: list[Measurement]
    skipped: dict[str, str]

    def ratio(self, m: Measurement) -> float:
        """The time per node, as a multiple of that in the smallest graph."""
        smallest = next(o for o in (*self.stages, *self.passes) if o.name == m.name)
        return m.per_node / smallest.per_node if smallest.best else 1.0

    def too_steep(self) -> list[Measurement]:
        largest = max(m.nodes for m in self.stages)
        return [m for m in self.stages if m.nodes == largest and self.ratio(m) > LIMIT]


def every_pass() -> eductor.Pipeline:
    """The pipeline with all registered passes, also those that are off by default."""
    off = {s.name for s in Registry.default().steps() if not s.is_slot and not s.load().on}
    return eductor.Pipeline.default(enable=sorted(off))


@dataclass(frozen=True)
class Run:
    """Seconds of one run of a stage: in total, by pass and by other part; and the passes that were skipped or failed."""

    seconds: float
    parts: dict[str, float]
    skipped: dict[str, str]


def run_once(pipeline: eductor.Pipeline, stage: Stage, size: int) -> Run:
    """Runs a stage on a new graph, which must stay unchanged."""
    module = make_graph(stage, size)
    before = Snapshot(module.graph)
    timer, watch = eductor.Timer(), Watch()
    context = Context(stage, eductor.Options(strict=True), is_inference=True)
    gc.collect()
    gc.callbacks.append(watch.collector)
    try:
        started = time.perf_counter()
        pipeline.run(stage, module, context, [timer, watch])
        seconds = time.perf_counter() - started
    finally:
        gc.callbacks.remove(watch.collector)
    skipped = {a: s for a, s in watch.status.items() if s.startswith("skipped")}
    changed = {a: s for a, s in watch.status.items() if a not in skipped and s != "unchanged"}
    assert not changed, f"these passes changed the graph, so it is not idle: {changed}"
    assert before.is_same(module.graph), f"the stage {stage} changed the graph, and no pass reports it"
    parts = {address: spent - watch.collecting_in[address] for address, spent in timer.seconds.items()}
    rest = seconds - sum(parts.values()) - watch.generating - watch.collecting
    others = zip(PARTS, (watch.generating, watch.collecting, rest), strict=True)
    return Run(seconds, parts | {f"{stage}/{name}": spent for name, spent in others}, skipped)


def measure(sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> Report:
    """Runs all stages on graphs of all sizes, in turns."""
    pipeline = every_pass()
    stages: dict[tuple[str, int], list[float]] = defaultdict(list)
    passes: dict[tuple[str, int], list[float]] = defaultdict(list)
    skipped: dict[str, str] = {}
    for stage in STAGES:
        run_once(pipeline, stage, 100)  # imports the passes and fills the caches of operators
    for _ in range(repeats):
        for size in sizes:
            for stage in STAGES:
                run = run_once(pipeline, stage, size)
                stages[stage, size].append(run.seconds)
                for address, part in run.parts.items():
                    passes[address, size].append(part)
                skipped |= run.skipped
    return Report(_summarize(stages), _summarize(passes), skipped)


def _summarize(samples: dict[tuple[str, int], list[float]]) -> list[Measurement]:
    names = list(dict.fromkeys(name for name, _ in samples))
    return [
        Measurement(name, size, min(times), statistics.median(times))
        for name in names
        for (n, size), times in samples.items()
        if n == name
    ]


# -------------------------------------------------------------------------------------------------------- the report


def stage_table(report: Report) -> str:
    header = ("stage", "nodes", "ms", "median ms", "µs per node", "ratio")
    rows = (
        (
            m.name,
            m.nodes,
            f"{1e3 * m.best:.2f}",
            f"{1e3 * m.median:.2f}",
            f"{m.per_node:.2f}",
            f"{report.ratio(m):.2f}",
        )
        for m in report.stages
    )
    return as_text(header, rows)


def pass_table(report: Report) -> str:
    """Microseconds per node of each pass, one column for each size."""
    sizes = list(dict.fromkeys(m.nodes for m in report.passes))
    by_name: dict[str, list[Measurement]] = defaultdict(list)
    for m in report.passes:
        by_name[m.name].append(m)
    header = ("µs per node", *(f"{size:,}" for size in sizes), "ratio")
    rows = (
        (name, *(f"{m.per_node:.3f}" for m in found), f"{report.ratio(found[-1]):.2f}")
        for name, found in by_name.items()
    )
    return as_text(header, rows)


def as_json(report: Report) -> str:
    def plain(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
        return [{**dataclasses.asdict(m), "us_per_node": m.per_node, "ratio": report.ratio(m)} for m in measurements]

    content = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "limit": LIMIT,
        "stages": plain(report.stages),
        "passes": plain(report.passes),
        "skipped": report.skipped,
        "ok": not report.too_steep(),
    }
    return json.dumps(content, indent=2)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measures the cost of an idle pipeline.")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of nodes, the smallest first")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="measurements of each stage and size")
    args = parser.parse_args(argv)
    report = measure([int(size) for size in args.sizes.split(",")], args.repeats)
    if args.json:
        print(as_json(report))
        return bool(report.too_steep())
    print(f"{stage_table(report)}\n\n{pass_table(report)}\n")
    for address, why in report.skipped.items():
        print(f"{address} was {why}")
    for m in report.too_steep():
        print(
            f"{m.name}: {report.ratio(m):.2f} times as long per node at {m.nodes:,} nodes; at most {LIMIT} is allowed"
        )
    if not report.too_steep():
        print(
            f"No pass changed anything, and no stage takes more than {LIMIT} times as long per node in a large graph."
        )
    return bool(report.too_steep())


if __name__ == "__main__":
    sys.exit(main())
