"""Kernels that are still being built when a compile returns: the backward is lowered meanwhile, and nothing else changes."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import FxGraphCache, LambdaFuture
from torch._inductor.triton_bundler import TritonBundle, TritonBundler
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

import eductor
from eductor.engines import ATEN, INDUCTOR, Engine
from eductor.engines.inductor import cpp_units, pending
from eductor.engines.inductor.engine import can_compile
from eductor.pipeline import Instrument
from eductor.program.bodies import shared_calls

needs_compiler = pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler")


def program(x):
    return x.sin(), x.cos() * 2


def slowly(log, fails="", **settings):
    """An engine that goes on building its kernels, where it may, until somebody waits for them; notes what it does."""

    def compile(job):
        bodies = " with bodies" * bool(shared_calls(job.module))
        name = f"{job.role}{bodies}{' without ' if job.undefined else ''}{','.join(map(str, job.undefined))}"
        log.append(name)
        if fails == name:
            raise RuntimeError("no kernels today")

        def wait():
            log.append(f"{name} built")
            if fails == f"{name} built":
                raise RuntimeError("no compiler today")

        return replace(ATEN(job), wait=wait if job.defers else None)

    return Engine("slowly", compile, **settings)


def trained(log, *used, fn=program, fails="", n=5, **options):
    """The gradient of a sum of the used outputs, and eager's; `log` gets a mark between forward and backward."""
    x = torch.linspace(0, 1, n, requires_grad=True)
    compiled = eductor.compile(fn, engine=slowly(log, fails), cache=False, **options)
    outputs = compiled(x)
    log.append("-")
    (gradient,) = torch.autograd.grad(sum(outputs[i].sum() for i in used), x)
    (expected,) = torch.autograd.grad(sum(fn(x)[i].sum() for i in used), x)
    assert torch.equal(gradient, expected)


def test_the_backward_is_lowered_while_the_forward_is_built():
    log = []
    trained(log, 0, 1)
    assert log == ["forward", "backward", "forward built", "-", "backward built"]


def test_inference_has_only_its_own_kernels_to_wait_for():
    log = []
    eductor.compile(program, engine=slowly(log), cache=False)(torch.ones(3))
    assert log == ["forward", "forward built"]


def test_each_stage_is_recorded_by_itself():
    log = []
    trained(log, 0, 1, instruments=[Instrument()])
    assert log == ["forward", "-", "backward"]


def test_saved_sizes_need_the_whole_backward_at_once():
    log = []
    trained(log, 0, fn=lambda x: (x.cumsum(0) * x.shape[0],), dynamic=True)
    assert log == ["forward", "backward", "backward built", "forward built", "-"]


@pytest.mark.parametrize(
    ("fn", "lowered"),
    [
        (lambda x: (x.square().mean(), x.sin()), "backward without 1"),
        (lambda x: (x.sin(), x.square().mean()), "backward without 0"),
        (lambda x: (x.square().mean(), x.sin().mean()), "backward"),
        (program, "backward"),
    ],
)
def test_the_loss_is_likely_to_be_differentiated_alone(fn, lowered):
    log = []
    used = {"backward": (0, 1), "backward without 1": (0,), "backward without 0": (1,)}[lowered]
    trained(log, *used, fn=fn)
    assert log == ["forward", lowered, "forward built", "-", f"{lowered} built"]


def test_another_variant_than_the_likely_one_is_compiled_when_it_is_called():
    log = []
    trained(log, 1)
    assert log == ["forward", "backward", "forward built", "-", "backward without 0", "backward without 0 built"]


def test_the_backward_is_lowered_again_if_the_forward_cannot_be_built():
    log = []
    with pytest.warns(eductor.EductorWarning, match=r"failed on the forward graph.*'aten'.*no compiler today"):
        trained(log, 0, 1, fails="forward built")
    assert log == ["forward", "backward", "forward built", "-", "backward", "backward built"]
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"EductorError: .*failed on the forward graph.*no compiler today"):
        trained([], 0, 1, fails="forward built", strict=True)


def layers(x):
    for _ in range(3):
        x = (x @ x).sin().softmax(-1) * 2
    return x


def test_layers_are_compiled_one_by_one_if_their_shared_body_cannot_be_built():
    log = []
    engine = slowly(log, "forward with bodies built", lower=["outline_repeated_regions"])
    compiled = eductor.compile(layers, engine=engine, cache=False, regions=True)
    x = torch.linspace(0, 1, 16).reshape(4, 4).requires_grad_()
    assert torch.equal(compiled(x), layers(x))
    shared = ["forward with bodies", "backward with bodies", "forward with bodies built"]
    assert log == [*shared, "forward", "forward built"]


@pytest.mark.parametrize("fails", ["backward", "backward built"])
def test_a_backward_that_fails_runs_on_aten(fails):
    with pytest.warns(eductor.EductorWarning, match=r"failed on the backward graph.*'aten'") as caught:
        trained([], 0, 1, fails=fails)
    assert len(caught) == 1


@pytest.mark.parametrize("fails", ["backward", "backward built"])
def test_a_strict_backward_raises_when_it_is_called(fails):
    log = []
    with pytest.raises(eductor.EductorError, match="failed on the backward graph"):
        trained(log, 0, 1, fails=fails, strict=True)
    assert log.index("-") == 3


def steps(x, w):
    """Two kernels with a product between them, and a backward."""
    return (x @ w).sin().softmax(-1)


def gradients(compiled):
    torch.manual_seed(0)
    leaves = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    result = compiled(*leaves)
    result.square().sum().backward()
    return [result.detach(), *(x.grad for x in leaves)]


@contextmanager
def noted():
    """What is compiled and awaited in this block, in order, where kernels are built anew."""
    log, compile, wait = [], INDUCTOR.compile, pending.wait_for_units

    def compiling(job):
        log.append(job.role)
        return compile(job)

    def waiting(*args):
        log.append("wait")
        return wait(*args)

    with patch.object(pending, "wait_for_units", waiting):
        yield log, replace(INDUCTOR, name="noting", compile=compiling)


@needs_compiler
def test_a_cold_compile_submits_both_graphs_before_it_waits_and_a_warm_one_does_as_before():
    torch._dynamo.reset()
    with fresh_cache():
        with noted() as (log, engine):
            cold = gradients(eductor.compile(steps, engine=engine, cache=False, strict=True))
            assert log == ["forward", "backward", "wait", "wait"]
        torch._dynamo.reset()
        counters.clear()
        with noted() as (log, engine):
            warm = gradients(eductor.compile(steps, engine=engine, cache=False, strict=True))
            assert log == ["forward", "wait", "backward", "wait"]
        assert counters["inductor"]["fxgraph_cache_hit"] == 2
        assert counters["inductor"]["fxgraph_cache_miss"] == 0
    for x, y, expected in zip(cold, warm, gradients(steps), strict=True):
        assert torch.equal(x, y)
        torch.testing.assert_close(x, expected)


@needs_compiler
@pytest.mark.parametrize("graph", ["forward", "backward"])
def test_a_kernel_that_no_compiler_takes(graph):
    """Its graph runs on ATen, with a warning; the other one stays compiled."""
    sources = [cpp_units.source_of] * 3
    sources[graph == "backward"] = lambda kernels: "#error no kernel"
    torch._dynamo.reset()
    with (
        fresh_cache(),
        patch.object(cpp_units, "source_of", lambda kernels: sources.pop(0)(kernels)),
        pytest.warns(eductor.EductorWarning, match=f"failed on the {graph} graph.*'aten'"),
    ):
        found = gradients(eductor.compile(steps, engine="inductor", cache=False))
    assert len(sources) == (0 if graph == "forward" else 1)
    for x, expected in zip(found, gradients(steps), strict=True):
        torch.testing.assert_close(x, expected)


def wait_in(scope, *, graph=7, defers=True):
    """Loads a module with these names while graph 7 is compiled; returns what is left to do, and the waits so far."""
    waits = []
    handler = V.set_graph_handler(SimpleNamespace(graph_id=graph))
    with pending.pending(7, defers=defers) as left, handler:
        pending.wait_or_defer(lambda compiler, names: waits.append(names), AsyncCompile(), scope)
        pending.keep_or_defer(lambda key, compiled: waits.append(key), "stored", SimpleNamespace())
    return left, waits


def worked_on():
    return LambdaFuture(lambda: "kernel", future=Future())


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"graph": None}, {}),
        ({"defers": False}, {}),
        ({"scope": {"kernel": worked_on()}}, {}),
        ({"scope": {"__file__": "x.py", "kernel": LambdaFuture(lambda: "kernel")}}, {}),
        ({}, {"profile_bandwidth_output": "x"}),
    ],
)
def test_a_module_waits_itself_if_its_kernels_run_at_once_or_are_there(changes, settings):
    given = {"scope": {"__file__": "x.py", "kernel": worked_on()}} | changes
    with config.patch(settings):
        left, waits = wait_in(**given)
    assert len(waits) == 2
    assert given["scope"]["kernel"] == "kernel"
    assert not left.is_pending
    left.finish()
    assert len(waits) == 2


def test_the_stored_graph_has_all_triton_kernels():
    """Those that come later, and those that this process built before its workers were ready."""
    scope, seen = {"__file__": "x.py", "kernel": worked_on()}, []
    before = TritonBundle(["built before"], ["of it"])
    graph = SimpleNamespace(
        _triton_bundle=before,
        set_triton_bundle=lambda bundle: seen.append([*bundle.kernel_artifacts, *bundle.static_autotuners]),
    )

    def wait(compiler, names):
        TritonBundler.put("hash", 0)
        seen.append([entry.kernel_hash for entry in TritonBundler._entries])

    with config.patch(bundle_triton_into_fx_graph_cache=True):
        with pending.pending(7, defers=True) as left, V.set_graph_handler(SimpleNamespace(graph_id=7)):
            pending.wait_or_defer(wait, AsyncCompile(), scope)
            pending.keep_or_defer(lambda key, compiled: seen.append(key), "stored", graph)
        assert left.is_pending
        assert seen == []
        left.finish()
        left.finish()
    assert seen == [["hash"], ["built before", "of it"], "stored"]
    assert TritonBundler._entries is None
    assert scope["kernel"] == "kernel"


def test_torch_stores_a_graph_by_the_name_that_is_patched():
    assert callable(FxGraphCache._save_graph)
