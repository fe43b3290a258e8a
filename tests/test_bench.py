"""The benchmark of an idle pipeline runs, finds nothing to do, and sees no quadratic growth."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import eductor
from eductor.pipeline import STAGES, Registry

SIZES = (200, 2000)


FOLDER = Path(__file__).parent.parent / "bench"


def load(name: str) -> ModuleType:
    """A benchmark as a module."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"bench_{name}"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load("idle_pipeline")


def test_time_grows_with_the_nodes_and_not_with_their_square(bench: ModuleType) -> None:
    report = bench.measure(SIZES, repeats=2)  # asserts that no pass changed anything
    assert [(m.name, m.nodes) for m in report.stages] == [(stage, size) for stage in STAGES for size in SIZES]
    for m in report.stages:
        # Quadratic growth would make it 10; what shares the machine with the tests may make it 2 or 3.
        assert report.ratio(m) < 5, f"{m.name}: {report.ratio(m):.1f} times as long a node at {m.nodes} nodes"


def test_every_pass_is_measured(bench: ModuleType) -> None:
    report = bench.measure((100,), repeats=1)
    passes = {step.address for step in Registry.default().steps() if not step.is_slot}
    assert passes <= {m.name for m in report.passes} | set(report.skipped)


def test_a_graph_that_gives_work_is_an_error(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    make_graph = bench.make_graph

    def busy(stage: str, size: int) -> object:
        module = make_graph(stage, size)
        node = next(n for n in module.graph.nodes if n.target is bench.TORCH.sin)
        node.op, node.target = "call_method", "sin"
        return module

    monkeypatch.setattr(bench, "make_graph", busy)
    with pytest.raises(AssertionError, match="changed the graph, so it is not idle"):
        bench.run_once(bench.every_pass(), "pre_grad", 100)


def test_json(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--json", "--sizes", "100,200", "--repeats", "1"])
    content = json.loads(capsys.readouterr().out)
    assert {m["name"] for m in content["stages"]} == set(STAGES)
    assert all(m["us_per_node"] > 0 for m in content["stages"])


def test_a_steep_stage_is_reported(bench: ModuleType) -> None:
    steep = [bench.Measurement("joint", 1000, 0.001, 0.001), bench.Measurement("joint", 10_000, 0.02, 0.02)]
    assert bench.Report(steep, [], {}).too_steep() == [steep[1]]


@pytest.mark.slow
def test_matching_is_measured_beside_torch_and_does_not_grow_with_the_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    patterns = load("patterns")
    wanted = [
        patterns.Spelling("heads_first", "multiplied", "added", "dropped", "native", "training"),
        *(patterns.Spelling("heads_first", "divided", m, "kept", "native", "inference") for m in ("unmasked", "added")),
    ]
    result = patterns.measure(1, 2, (300, 3000), wanted)
    assert result["beside"]["matches"] == 1, "the attention of the one layer"
    assert result["growth"][-1]["candidates"] > result["growth"][0]["candidates"] > 0
    assert result["reached"]["growth"] < 5  # quadratic growth would make it 10
    assert "ours / torch's" in patterns.as_lines(result)


def test_the_post_grad_stage_is_measured_beside_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    bench = load("post_grad")
    result = bench.measure(layers=1, repeats=1)
    assert set(result["seconds"]) == {"forward", "backward"}
    assert all(count > 50 for count in result["nodes"].values())
    assert result["passes"]["forward"]["post_grad/unfuse_bias_add"][0] == 3, "its matches, in one layer"
    assert result["ok"] == (result["ratio"] <= bench.LIMIT)
    assert "ours take" in bench.as_lines(result)


@pytest.fixture
def pre_grad(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return load("pre_grad")


def test_the_models_of_the_pre_grad_stage_are_measured_and_judged(
    pre_grad: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_kernels(device: str, sizes: eductor.Instrument) -> dict[str, Callable[[Any], Any]]:
        return {
            "eager": lambda fn: fn,
            "inductor": lambda fn: torch.compile(fn, backend="eager"),
            "eductor": lambda fn: eductor.compile(fn, engine="aten", instruments=[sizes]),
        }

    monkeypatch.setattr(pre_grad, "backends", without_kernels)
    works = list(pre_grad.workloads("cpu", ("ranking", "decoder"), features=6, batch=2))
    assert len(works) == 5
    found = {work.name: pre_grad.measure(work, "cpu", rounds=1) for work in works}
    assert not any(result["wrong"] for result in found.values()), found
    assert all(result["calls"]["before"] > 10 for result in found.values())
    assert "x inductor" in pre_grad.table(found, "cpu")


def test_the_cost_of_the_pre_grad_stage_grows_with_the_graph(pre_grad: ModuleType) -> None:
    rows = pre_grad.stage_cost((1, 4), repeats=2, only=("ranking",))
    assert rows[0]["nodes"] < rows[1]["nodes"]
    assert pre_grad.growth(rows)["ranking"] < 3  # quadratic growth would make it 4
    assert "ms per 100 nodes" in pre_grad.cost_table(rows)
