"""Calls and launches without what torch does around each: the same results, and whoever looks on sees them all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._inductor import debug
from torch._inductor.debug import record_and_log_graph_execution_order
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.utils._debug_mode import DebugMode

import eductor
from eductor.engines.inductor.calls import is_observed, launch_directly

TORCH_DOES = hasattr(CachingAutotuner, "_build_fast_launcher")


class Static:
    """A kernel as torch 2.11 loads it: two arguments, and a pointer that it does not use."""

    arg_tys, has_global_scratch, has_profile_scratch, function, num_warps, shared = "Oi", True, False, 7, 4, 16

    def __init__(self):
        self.seen = []
        self.C_impl = SimpleNamespace(_launch_kernel=lambda *args: self.seen.append(args))

    def run(self, *args):
        self.seen.append(("slowly", *args))


class Kernel:
    """What stands around it: it has two forms until it was launched once."""

    triton_interpret = dump_launch_params = dump_launch_tensors = False

    def __init__(self, **settings):
        self.static, self.whole = Static(), 0
        scope = {"runner": self.static.run}
        exec("def launcher(x, xnumel, stream):\n    runner(-(xnumel // -8), 1, 1, stream, x, xnumel)", scope)
        self.launchers = [scope["launcher"]] * 2
        self.launchers[0].store_cubin = False
        for name, value in settings.items():
            setattr(self, name, value)

    def run(self, *args, stream, benchmark_run=False):
        self.whole += 1
        del self.launchers[1:]
        return self.launchers[0](*args, stream=stream)


def generated(kernel, looks=lambda: False):
    """The names of a generated module, after its kernels are launched directly; its code calls `run` of them."""
    scope = {"kernel": kernel, "other": 5}
    launch_directly(scope, Kernel, looks)
    assert scope["other"] == 5
    return scope


def launch(scope, n=20, **settings):
    scope["kernel"].run("x", n, stream=3, **settings)


def test_the_second_launch_goes_to_the_driver_at_once():
    kernel = Kernel()
    scope = generated(kernel)
    for n in (20, 20, 4):
        launch(scope, n)
    assert kernel.whole == 1
    assert kernel.static.seen == [
        ("slowly", 3, 1, 1, 3, "x", 20),
        (7, 3, 1, 1, 4, 16, "OiO", ("x", 20, None), 3),
        (7, 1, 1, 1, 4, 16, "OiO", ("x", 4, None), 3),
    ]


def test_who_looks_on_sees_each_launch():
    kernel, looks = Kernel(), [False]
    scope = generated(kernel, lambda: looks[0])
    for looks[0] in (False, True, False):
        launch(scope)
    launch(scope, benchmark_run=True)
    assert kernel.whole == 3


def by_triton():
    """Triton's own launcher may ask for memory that is set up at each launch."""
    kernel = Kernel()
    kernel.launchers[0].__globals__["runner"] = lambda *args: None
    return kernel


EACH_TIME = {
    "interpreted": lambda: Kernel(triton_interpret=True),
    "arguments_dumped": lambda: Kernel(dump_launch_params=True),
    "tensors_dumped": lambda: Kernel(dump_launch_tensors=True),
    "by_triton": by_triton,
}


@pytest.mark.parametrize("kind", EACH_TIME)
def test_what_is_done_at_each_launch_is_done(kind):
    kernel = EACH_TIME[kind]()
    scope = generated(kernel)
    for _ in range(3):
        launch(scope)
    assert kernel.whole == 3


def test_the_kernel_itself_stays_as_it_is():
    """Torch copies it for graphs that share it, pickles it for its cache, and asks it for more than launches."""
    kernel = Kernel()
    before = dict(vars(kernel))
    scope = generated(kernel)
    launch(scope)
    assert vars(kernel).keys() == before.keys()
    assert kernel.run.__self__ is kernel
    assert scope["kernel"].launchers is kernel.launchers
    for _ in range(2):  # a second graph of the same text
        launch_directly(scope, Kernel, lambda: False)
        launch(scope)
    assert kernel.whole == 1


@pytest.fixture
def calls(monkeypatch):
    """How often a graph was called with all that torch does around it."""
    seen = []
    whole = CompiledFxGraph.__call__
    monkeypatch.setattr(CompiledFxGraph, "__call__", lambda self, inputs: (seen.append(self), whole(self, inputs))[1])
    return seen


def test_from_the_second_call_on_only_a_profiler_gets_the_whole(calls):
    compiled = eductor.compile(lambda x: (x * 2).sin(), engine="inductor")
    x = torch.randn(5)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), (x * 2).sin())
    assert len(calls) == 1
    with torch.profiler.profile() as profile:
        compiled(x)
    assert len(calls) == 2
    assert any("Call CompiledFxGraph" in event.key for event in profile.key_averages())


def test_torchs_record_of_graphs_has_later_calls():
    compiled = eductor.compile(lambda x: (x * 2).cos(), engine="inductor")
    x = torch.randn(5)
    for _ in range(2):
        compiled(x)
    with record_and_log_graph_execution_order():
        for _ in range(2):
            compiled(x)
        assert len(debug.GRAPH_EXECUTION_ORDER) == 2


def test_a_first_call_that_fails_is_not_the_first_one(calls):
    def fn(x):
        return torch.linalg.cholesky(x) + 1

    compiled = eductor.compile(fn, engine="inductor")
    for _ in range(2):
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(-torch.eye(3))
    torch.testing.assert_close(compiled(torch.eye(3)), fn(torch.eye(3)))
    assert len(calls) == 3
    compiled(torch.eye(3))
    assert len(calls) == 3


@pytest.mark.gpu
def test_kernels_on_a_gpu():
    def fn(x, y):
        return (x + y).sin() * 2, (x * y).sum(-1)

    compiled = eductor.compile(fn)
    for n in (64, 64, 64, 96, 96):  # the second size makes a graph for all sizes
        x, y = torch.randn(2, n, 32, device="cuda").unbind()
        for got, expected in zip(compiled(x, y), fn(x, y), strict=True):
            torch.testing.assert_close(got, expected)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(x, y)
    assert any(event.key.startswith("triton_") for event in profile.key_averages())
    with DebugMode(record_torchfunction=False) as mode:
        compiled(x, y)
    assert "triton_" in mode.debug_string()


@pytest.mark.gpu
@pytest.mark.skipif(TORCH_DOES, reason="this version of torch does it itself")
def test_kernels_on_a_gpu_are_launched_at_once(monkeypatch):
    whole = CachingAutotuner.run
    seen = []
    monkeypatch.setattr(CachingAutotuner, "run", lambda self, *a, **k: (seen.append(self), whole(self, *a, **k))[1])
    compiled = eductor.compile(lambda x: (x * 2 + 5).cos().sum(-1))
    x = torch.randn(64, 32, device="cuda")
    for _ in range(5):
        compiled(x)
    assert len(seen) == 1


def test_who_looks_on_is_seen():
    assert not is_observed()
    with torch.profiler.profile():
        assert is_observed()
    with DebugMode():
        assert is_observed()


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older versions do not")
def test_newer_versions_of_torch_do_it_themselves():
    """Where this fails, a version has moved it: then `direct_call` must look for it under another name."""
    assert TORCH_DOES
