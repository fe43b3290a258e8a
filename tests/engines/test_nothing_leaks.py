"""The user's own torch.compile: stock Inductor gives the same code, under the same keys, whatever Eductor compiled before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx, decomposition, graph, ir, lowering, scheduler
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import eductor
from eductor.engines.inductor.engine import decompositions
from eductor.engines.inductor.patches import active

aten = torch.ops.aten
ORDERS = ("stock ours stock", "ours turns")


@pytest.fixture(scope="module")
def found():
    """What each order of compiles gives in a process of its own."""
    script = Path(__file__).parent / "stock_rounds.py"
    root = str(Path(eductor.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(script)]
    processes = {
        order: subprocess.Popen([*command, *order.split()], stdout=subprocess.PIPE, text=True, env=environment)
        for order in ORDERS
    }
    answers = {order: process.communicate(timeout=300)[0] for order, process in processes.items()}
    assert not any(process.returncode for process in processes.values())
    return {order: json.loads(answer) for order, answer in answers.items()}


@pytest.fixture(scope="module")
def untouched(found):
    """What stock Inductor made in a process that had not seen Eductor."""
    return found[ORDERS[0]]["stock"][0]


def test_every_program_is_seen(untouched):
    assert len(untouched) == 10
    assert all(made["code"] and made["keys"] for made in untouched.values())
    assert len(untouched["trained"]["code"]) == 2
    assert "_masked_softmax" in untouched["trained"]["code"][1]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("what", ["code", "keys"])
def test_stock_makes_the_same_in_every_order(found, untouched, order, what):
    for made in found[order]["stock"]:
        for program, expected in untouched.items():
            assert made[program][what] == expected[what], program


def test_torchs_modules_and_tables_are_as_they_were(found):
    assert found[ORDERS[0]]["changed"] == [[]]


def patched():
    """What is patched, as it stands in torch now."""
    functions = vars(ir.FallbackKernel)["create"], scheduler.SchedulerNode.recompute_size_and_body
    return *functions, lowering.mutate_to, graph.make_fallback, scheduler.Scheduler.fusable_weak_dep


def test_the_last_of_several_compiles_removes_the_patches():
    before, table = patched(), dict(lowering.lowerings)
    first, second = active(), active()
    first.__enter__()
    with ThreadPoolExecutor(1) as other:
        other.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        assert all(a is not b for a, b in zip(patched(), before, strict=True))
        other.submit(second.__exit__, None, None, None).result()
    assert patched() == before
    assert lowering.lowerings == table


def test_a_compile_that_fails_leaves_nothing(monkeypatch):
    before, table = patched(), dict(lowering.lowerings)
    monkeypatch.setattr(GraphLowering, "run", lambda self, *args: 1 / 0)
    with torch._inductor.config.patch(fx_graph_cache=False), pytest.raises(Exception, match="division by zero"):
        eductor.compile(lambda x: x.sin() + 4, engine="inductor", strict=True)(torch.ones(3))
    assert patched() == before
    assert lowering.lowerings == table


def test_fallbacks_that_were_there_stay():
    """Stock Inductor has met an operator of ours: its fallback comes back, with its strides."""
    op = torch.ops.eductor.stored.default
    lowering.make_fallback(op, lowering.require_contiguous)
    tables = lowering.lowerings, lowering._maybe_layout_constraints
    before = [table[op] for table in tables]
    try:
        with active():
            assert lowering.lowerings[op] is not before[0]
        assert [table[op] for table in tables] == before
        assert op in lowering.fallbacks
    finally:
        for table in tables:
            del table[op]
        lowering.fallbacks.discard(op)
        lowering.needs_realized_inputs.discard(op)


@pytest.mark.parametrize("fallback_random", [False, True])
def test_the_users_decompositions_still_count(fallback_random):
    """Torch builds the table for its own random numbers once; who asks for ours does not make it do so."""
    is_cached = decomposition.fast_random_decomps.cache_info().currsize
    decomposition.fast_random_decomps.cache_clear()
    table = decompositions(fallback_random=fallback_random)
    own = decomposition.extra_random_decomps.keys() - decomposition.decompositions.keys()
    assert own
    assert all((op in table) != fallback_random for op in own)
    assert decomposition.fast_random_decomps.cache_info().currsize == 0
    if is_cached:
        decomposition.fast_random_decomps()


def written_whole(x):
    product = x @ x
    return aten.copy_.default(product, x * 2).sum(0), product


@pytest.fixture
def no_kernels(monkeypatch):
    """Code is generated and not built."""
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda self, types, source: lambda *args: None)


def stock_code() -> str:
    """What Inductor generates on this thread for a write that our patches change."""
    codes: list[str] = []
    with FakeTensorMode() as mode, tracing(TracingContext(mode)):
        x = torch.rand(4, 4)
        module = make_fx(written_whole)(x)
        with (
            patch.object(GraphLowering, "save_output_code", codes.append),
            V.set_fake_mode(mode),
            torch._inductor.config.patch(fx_graph_cache=False),
        ):
            compile_fx.compile_fx_inner(module, [x])
    return codes[0]


def test_another_thread_compiles_with_stock_meanwhile(monkeypatch, no_kernels):
    expected, x = stock_code(), torch.rand(4, 4)
    with active():
        assert stock_code() != expected
    lower, compiling, may_go_on = GraphLowering.run, threading.Event(), threading.Event()
    other = ThreadPoolExecutor(1)
    (thread,) = [other.submit(threading.current_thread).result()]

    def run(self, *args):
        if threading.current_thread() is thread:
            compiling.set()
            assert may_go_on.wait(60)
        return lower(self, *args)

    monkeypatch.setattr(GraphLowering, "run", run)
    compiled = eductor.compile(lambda x: ((x @ x).softmax(0) + 3, x.cos()), engine="inductor", strict=True)

    def ours():
        with torch._inductor.config.patch(fx_graph_cache=False):
            return compiled(x)

    with other:
        result = other.submit(ours)
        try:
            assert compiling.wait(60)
            assert lowering.mutate_to.__wrapped__
            assert stock_code() == expected
        finally:
            may_go_on.set()
        result.result()
    assert not hasattr(lowering.mutate_to, "__wrapped__")
