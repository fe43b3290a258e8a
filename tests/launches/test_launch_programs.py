"""The 64 programs of the specification: eager, compiled, and compiled with replayed launches, give the same results.

Without a GPU they run on the fake device, which breaks what a real one might overwrite. Each runs once with small outputs
copied, as they are, and once with all outputs leased, as large ones are.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import input_programs  # noqa: F401
import output_programs  # noqa: F401
import process_programs  # noqa: F401
import pytest
import torch
import training_programs  # noqa: F401
from fake_device import installed
from launch_programs import PROGRAMS
from torch.utils import _pytree as pytree

import eductor
from eductor import compiler
from eductor.launches import ReplayedProgram, take

WITH_ATEN = (1, 5, 11, 13, 22, 30, 33, 37, 42, 47, 55)
"""The programs that run on a GPU with kernels of eager, too."""
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@dataclass
class Seen:
    """What was replayed, and what was decided."""

    replays: int = 0
    refused: list[str] = field(default_factory=list)
    programs: weakref.WeakSet[ReplayedProgram] = field(default_factory=weakref.WeakSet)

    def clear(self):
        self.replays = 0
        self.refused.clear()
        self.programs.clear()

    def note(self, decision):
        if isinstance(decision, ReplayedProgram):
            self.programs.add(decision)
        else:
            self.refused.append(str(decision))
        return decision

    def reasons(self):
        shapes = [shape for program in self.programs for shape in program.to_json()["shapes"]]
        return [*self.refused, *(shape["reason"] for shape in shapes if shape["reason"] is not None)]


@pytest.fixture
def seen(monkeypatch):
    seen, replay, replayed = Seen(), take.Take.replay, compiler.replayed

    def counted(self, given):
        seen.replays += 1
        return replay(self, given)

    monkeypatch.setattr(take.Take, "replay", counted)
    monkeypatch.setattr(compiler, "replayed", lambda *given: seen.note(replayed(*given)))
    return seen


def results(program, device, compile: Callable[..., Any]):
    torch._dynamo.reset()
    torch.manual_seed(0)
    found = pytree.tree_leaves(program.run(device, compile))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return [(_form(x), x.detach().cpu().clone()) if isinstance(x, torch.Tensor) else (None, x) for x in found]


def _form(x):
    return tuple(x.shape), x.stride(), x.dtype, x.requires_grad, x.is_leaf


def compare(got, expected, **tolerances):
    assert len(got) == len(expected)
    for k, ((form, value), (expected_form, expected_value)) in enumerate(zip(got, expected, strict=True)):
        assert form == expected_form, f"result {k}"
        if form is None:
            assert value == expected_value, f"result {k}"
        else:
            torch.testing.assert_close(
                value, expected_value, equal_nan=True, **tolerances, msg=lambda m, k=k: f"result {k}: {m}"
            )


BITWISE = {"rtol": 0, "atol": 0}


def check(program, device, seen, monkeypatch, *, engine=None):
    """Runs a program eager, compiled, and compiled with replayed launches: with small outputs copied, and leased."""
    is_exact = engine == "aten"
    options = {"engine": engine, "fallback_random": True, **({"profile": "exact"} if is_exact else {})}

    def compiled(launches):
        return lambda fn, **more: eductor.compile(fn, launches=launches, **{**options, **more})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = results(program, device, lambda fn, **more: fn)
        never = results(program, device, compiled("never"))
        compare(never, expected, **(BITWISE if is_exact and not program.rounds else {"rtol": 1e-2, "atol": 1e-2}))
        assert not seen.replays
        for most_copied in (take.SMALL, -1):
            monkeypatch.setattr(take, "SMALL", most_copied)
            seen.clear()
            fake = installed(monkeypatch) if device.type == "cpu" else None
            if program.prepare is not None:
                program.prepare(monkeypatch, fake)
            compare(results(program, device, compiled("always")), never, **BITWISE)
            check_decisions(program, device, seen)


def check_decisions(program, device, seen):
    refused_here = program.refused_on_gpu if device.type == "cuda" else ""
    reason, replays = program.reason or refused_here, False if refused_here else program.replays
    assert any(reason in found for found in seen.reasons() or [""]), seen.reasons()
    if replays is not None:
        assert (seen.replays > 0) == replays, seen.reasons()


@pytest.mark.parametrize("program", [p for p in PROGRAMS if not p.needs_gpu], ids=str)
def test_on_a_fake_device(program, seen, monkeypatch, one_thread):
    check(program, CPU, seen, monkeypatch, engine="aten")


@pytest.mark.gpu
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_on_a_gpu(program, seen, monkeypatch):
    check(program, CUDA, seen, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.number in WITH_ATEN], ids=str)
def test_on_a_gpu_with_kernels_of_eager(program, seen, monkeypatch):
    check(program, CUDA, seen, monkeypatch, engine="aten")


def test_every_program_of_the_specification_is_there():
    assert {p.number for p in PROGRAMS} == {*range(1, 65)}


def _takes():
    gc.collect()
    return sum(type(value) is take.Take for value in gc.get_objects())


def _make_and_drop(device, count):
    for k in range(count):
        torch.manual_seed(k)
        net = torch.nn.Linear(8, 8).to(device)
        f = eductor.compile(lambda x, net=net, k=k: net(x).mul(k + 1).square().mean(), engine="aten", launches="always")
        for _ in range(4):
            f(torch.ones(4, 8, device=device)).backward()
            net.zero_grad()
        torch._dynamo.reset()


def test_dropped_functions_leave_no_takes(monkeypatch):
    installed(monkeypatch)
    before = _takes()
    _make_and_drop(CPU, 3)
    assert _takes() == before


@pytest.mark.gpu
def test_dropped_functions_give_their_memory_back():
    def reserved():
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    _make_and_drop(CUDA, 2)
    before = _takes(), reserved()
    _make_and_drop(CUDA, 30)
    assert (_takes(), reserved()) <= before


SCRIPT = """
    import torch, eductor

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
    f = eductor.compile(lambda x: net(x).square().mean(), engine="aten", profile="exact", launches="always")
    for k in range(10):
        x = torch.full((64, 512), 0.1 * k, device="cuda")
        found = []
        for run in (f, lambda x: net(x).square().mean()):
            loss = run(x)
            loss.backward()
            found.append([loss, *(p.grad for p in net.parameters())])
            net.zero_grad()
        assert all(map(torch.equal, *found)), k
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    "setting",
    [
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync",
        "PYTORCH_NO_CUDA_MEMORY_CACHING=1",
        "CUDA_LAUNCH_BLOCKING=1",
    ],
)
def test_other_allocators(setting):
    environment = os.environ | dict([setting.split("=")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert not done.returncode, done.stderr[-2000:]
