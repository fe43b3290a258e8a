"""What starts before the passes run: the worker processes for GPU kernels, the search for the CPU's vector instructions."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch._inductor import config, cpu_vec_isa
from torch._inductor.async_compile import AsyncCompile
from torch._subclasses import FakeTensorMode

import eductor
from eductor.engines import INDUCTOR
from eductor.engines.inductor import vector_isa
from eductor.engines.inductor.patches import active, installed
from eductor.engines.inductor.workers import generate_awake

TORCHS = cpu_vec_isa.valid_vec_isa_list


def on(device):
    with FakeTensorMode():
        return torch.empty(2, device=device)


@pytest.fixture
def wakeups():
    """The calls that wake the workers, which stay asleep."""
    with patch.object(AsyncCompile, "wakeup", autospec=True) as wakeup:
        yield wakeup


class Set:
    """A set of instructions whose test program answers `works`, once it may."""

    def __init__(self, name, works, may=None):
        self.name, self.works, self.may, self.asked = name, works, may, 0

    def __str__(self):
        return self.name

    def bit_width(self):
        return 8

    def __bool__(self):
        if self.may is not None:
            assert self.may.wait(20)
        self.asked += 1
        return self.works


@pytest.fixture
def sets():
    """A CPU with the flags a, b, c and d, whose compiler does not know a; nothing is known about it yet."""
    given = [Set("z", True), Set("a", False), Set("b c", True, threading.Event()), Set("d", True)]
    given[2].may.set()
    vector_isa._best.cache_clear()
    with (
        patch.object(cpu_vec_isa, "supported_vec_isa_list", given),
        patch.object(cpu_vec_isa, "x86_isa_checker", lambda: ["a", "b", "c", "d"]),
        patch.object(cpu_vec_isa, "valid_vec_isa_list", lambda: [s for s in given[1:] if s]),
    ):
        yield SimpleNamespace(all=given, best=given[2], worst=given[3])
    vector_isa._best.cache_clear()


def test_workers_wake_before_the_passes_of_a_graph_on_a_gpu(wakeups):
    with INDUCTOR.warmed_up([on("cpu"), on("cuda")], False):
        assert wakeups.call_count == 1


def test_workers_sleep_for_a_cached_graph_until_its_code_is_generated(wakeups):
    with INDUCTOR.warmed_up([on("cuda")], True):
        assert not wakeups.called
    inputs = [on("cuda")]
    made = generate_awake(lambda *args, **given: (args, given, wakeups.call_count), "graph", inputs, [], graph_id=1)
    assert made == (("graph", inputs, []), {"graph_id": 1}, 1)


def test_workers_sleep_where_nothing_runs_on_a_gpu(wakeups):
    with INDUCTOR.warmed_up([on("meta")], False):
        generate_awake(lambda *args: None, "graph", [on("cpu")])
    assert not wakeups.called


def test_workers_that_cannot_start_fail_no_compile(wakeups):
    wakeups.side_effect = RuntimeError("no processes")
    with INDUCTOR.warmed_up([on("cuda")], False):
        assert wakeups.called


@pytest.mark.parametrize("engine", ["aten", lambda job: eductor.ATEN(job)])
def test_other_engines_start_nothing(engine, wakeups):
    with patch.object(vector_isa, "best", side_effect=AssertionError):
        eductor.compile(torch.sin, engine=engine, cache=False)(torch.ones(3))
    assert not wakeups.called


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_the_code_generator_is_imported_where_a_function_is_given(engine):
    program = f"""
import sys, torch, eductor
assert "torch._inductor.compile_fx" not in sys.modules
eductor.compile(torch.sin, engine={engine!r})
assert ("torch._inductor.compile_fx" in sys.modules) is {engine == "inductor"}
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_engine_warms_up_around_each_compile(tmp_path, monkeypatch):
    seen = []

    @contextmanager
    def warmed_up(inputs, is_cached):
        seen.append((len(inputs), is_cached))
        yield
        seen.append("over")

    def compile(job):
        assert seen[-1] != "over"
        return eductor.ATEN(job)

    monkeypatch.setenv("EDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EDUCTOR_CACHE_MIB", "64")
    engine = eductor.Engine("warm", compile, warmed_up=warmed_up)
    for _ in range(2):
        torch._dynamo.reset()
        eductor.compile(torch.add, engine=engine)(torch.ones(3), torch.ones(3))
    assert seen == [(2, False), "over", (2, True), "over"]


def test_the_search_ends_with_the_best_set(sets):
    assert vector_isa.best() == TORCHS.__wrapped__()[:1] == [sets.best]
    asked = sets.worst.asked
    with active():
        assert cpu_vec_isa.pick_vec_isa() is sets.best
    assert sets.worst.asked == asked


def test_stock_searches_for_all_sets(sets):
    with installed():
        assert cpu_vec_isa.valid_vec_isa_list() == [sets.best, sets.worst]


def test_a_setting_for_another_set_holds(sets, monkeypatch):
    with active():
        with config.patch("cpp.simdlen", 8):
            assert cpu_vec_isa.valid_vec_isa_list() == [sets.best, sets.worst]
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
        assert cpu_vec_isa.valid_vec_isa_list() == [sets.best, sets.worst]


def test_the_search_runs_beside_the_passes_and_only_once(sets):
    sets.best.may.clear()
    with ThreadPoolExecutor(2) as threads:
        with INDUCTOR.warmed_up([on("cpu")], False):

            def ours():
                with active():
                    return cpu_vec_isa.pick_vec_isa()

            found, stocks = threads.submit(ours), threads.submit(cpu_vec_isa.valid_vec_isa_list)
            assert not vector_isa.is_known()
            sets.best.may.set()
        assert vector_isa.is_known()  # at the end the search is over
        assert found.result() is sets.best
        assert stocks.result() == [sets.best, sets.worst]
    assert sets.best.asked == 2  # once by our search, once by torch's own, which keeps a list of its own


def test_a_known_set_is_not_searched_for_again(sets):
    vector_isa.best()
    before = threading.active_count()
    with INDUCTOR.warmed_up([on("cpu")], False):
        assert threading.active_count() == before
        vector_isa.best()
    assert sets.best.asked == 1


def test_a_search_that_fails_fails_no_compile(sets):
    with patch.object(cpu_vec_isa, "x86_isa_checker", side_effect=RuntimeError("no compiler")):
        with INDUCTOR.warmed_up([on("cpu")], False):
            pass
        with pytest.raises(RuntimeError, match="no compiler"):
            vector_isa.best()


def test_a_processor_of_another_kind_is_left_to_torch(sets):
    with patch.object(cpu_vec_isa, "x86_isa_checker", list), active():
        assert cpu_vec_isa.valid_vec_isa_list() == [sets.best, sets.worst]
