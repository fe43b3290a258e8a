"""eductor bench: what it measures, what it says, and what it makes of bad input."""

from __future__ import annotations

import json
import threading
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import torch

import eductor
from eductor.cli import main
from eductor.errors import BadScript
from eductor.measure.bench import Bench, Measured
from eductor.measure.bench_text import as_page, as_table
from eductor.measure.cases import case
from eductor.measure.models import BUILT_IN
from eductor.measure.steady import TimedModel, error, truth

FILE = """
import torch
from torch import nn


def mine(device):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device), (torch.randn(3, 8, device=device),)


MODELS = {"mine": mine}
"""


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(FILE)
    return str(path)


def figures(ms, cold=None, memory=100):
    return {"milliseconds": ms, "least": ms, "error": 1e-7, "memory": memory, "cold": cold, "warm": cold}


MEASURED = Measured(
    "cpu",
    {
        "a, training": {"eager": figures(4.0), "inductor": figures(2.0, 8.0), "eductor": figures(1.0, 4.0, 50)},
        "b, training": {"eager": figures(4.0), "inductor": figures(2.0, 8.0), "eductor": figures(4.0, 4.0, 50)},
    },
)


def test_a_model_of_a_file_in_all_ways(models, tmp_path, capsys):
    data, page = tmp_path / "bench.json", tmp_path / "bench.html"
    options = ["--device", "cpu", "--rounds", "2", "--kinds", "training", "--json", str(data), "--html", str(page)]
    assert main(["bench", models, *options]) == 0
    said = capsys.readouterr()
    assert "first step with inductor, cold" in said.err
    assert "mine, training" in said.out
    row = json.loads(data.read_text())["rows"]["mine, training"]
    assert list(row) == ["eager", "inductor", "eductor"]
    assert all(f["milliseconds"] > 0 and f["error"] < 1e-5 and f["memory"] > 0 for f in row.values())
    assert row["eductor"]["memory"] <= row["eager"]["memory"]
    ours = row["eductor"]
    assert ours["cold"] > 0
    assert ours["warm"] > 0
    assert {"pre_grad", "autograd", "joint", "partition", "post_grad", "engine"} <= set(ours["stages"])
    assert sum(ours["stages"].values()) <= ours["cold"]
    assert ours["nodes"]["pre_grad, captured"] > 4
    assert "<svg" in page.read_text()
    assert Path(cache_from_source(eductor.compiler.__file__)).exists(), "each first step compiles the package's sources"


def test_first_steps_at_a_time(models, monkeypatch):
    """So many as asked for, on caches of their own; the steps that are compared run alone, and after those before them."""
    running, most, caches = [], {"first": 0, "steady": 0}, []
    meet = threading.Barrier(2)

    def child(job, cache):
        kind = "first" if job["way"] else "steady"
        running.append(kind)
        most[kind] = max(most[kind], len(running))
        if job["way"]:
            caches.append((str(cache), job["records"]))
            meet.wait(timeout=60)
        running.pop()
        return {"seconds": 1.0, "stages": {}, "nodes": {}} if job["way"] else {way: figures(1.0) for way in job["ways"]}

    monkeypatch.setattr(
        "eductor.measure.bench._child", lambda job, cache: (cache.mkdir(exist_ok=True), child(job, cache))[1]
    )
    measured = Bench(models, jobs=2).run()
    assert list(measured.rows) == ["mine, inference", "mine, training"]
    assert all(row["eductor"]["cold"] == row["inductor"]["warm"] == 1.0 for row in measured.rows.values())
    assert most == {"first": 2, "steady": 1}
    assert len(caches) == 8
    assert len({cache for cache, _ in caches}) == 4


def test_a_first_step_that_fails_costs_its_row_alone(models, monkeypatch):
    def child(job, cache):
        if job["training"] and job["way"] == "inductor":
            raise BadScript("mine with inductor ended with code 1")
        cache.mkdir(exist_ok=True)
        return {"seconds": 1.0, "stages": {}, "nodes": {}} if job["way"] else {way: figures(1.0) for way in job["ways"]}

    monkeypatch.setattr("eductor.measure.bench._child", child)
    measured = Bench(models, jobs=2).run()
    assert list(measured.rows) == ["mine, inference"]
    assert measured.failures == {"mine, training": "mine with inductor ended with code 1"}


def test_means_are_geometric():
    assert MEASURED.mean("milliseconds") == pytest.approx(1.0)
    assert MEASURED.mean("cold") == pytest.approx(0.5)
    assert MEASURED.mean("memory") == pytest.approx(0.5)
    assert Measured("cpu").mean("cold") is None


def test_the_table():
    text = as_table(MEASURED)
    assert "a, training" in text
    assert "2.00" in text
    assert text.endswith(
        "1.00 times the speed, 0.50 of the cold compile time, 0.50 of the warm compile time, 0.50 of the memory."
    )


def test_the_page_needs_nothing_else():
    page = as_page(MEASURED)
    assert "http" not in page
    assert page.count("<rect") == 2 * (3 + 2 + 2 + 3)  # time and memory of three ways, compile times of two
    assert "Time of a step" in page


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_models_run(name, training):
    of = case(BUILT_IN[name], "cpu", training=training)
    eager = TimedModel(of, lambda model: model)
    assert error(eager.results(), truth(of)) < 1e-4
    assert (eager.memory() is not None) == training


def test_an_error_is_seen():
    of = case(BUILT_IN["ranking"], "cpu", training=False)
    wrong = TimedModel(of, lambda model: lambda *inputs: model(*inputs) * 1.5)
    assert error(wrong.results(), truth(of)) == pytest.approx(0.5, rel=1e-3)


BAD = {
    "no such file": ["nothing.py"],
    "no dictionary MODELS": ["EMPTY"],
    "unknown model": ["MODELS", "--only", "other"],
    "unknown model of": ["MODELS:other"],
    "--jobs 0: it must be 1 or more": ["MODELS", "--jobs", "0"],
    "ended with code": ["BROKEN", "--no-compile-times", "--kinds", "inference"],
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line(message, models, tmp_path, capsys):
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("MODELS = {'broken': lambda device: 1 / 0}")
    named = {"EMPTY": str(tmp_path / "empty.py"), "BROKEN": str(tmp_path / "broken.py")}
    given = [named.get(x, x.replace("MODELS", models)) for x in BAD[message]]
    assert main(["bench", "--device", "cpu", *given]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("eductor: ")
    assert message in said.lower() or message in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here(models, capsys):
    assert main(["bench", models, "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err
