"""The stages of compiles on a terminal and in the log, and where nothing is shown."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import LambdaFuture

import eductor
from eductor.engines.inductor.pending import wait_or_defer
from eductor.errors import EductorWarning, warn
from eductor.observe.explain.progress import Progress
from eductor.progress import Line, building, screen, shown, stages
from progress.terminal import Screen, pseudo_terminal

NAME = "eductor-progress"


def is_shown_by_a_thread():
    return any(thread.name == NAME for thread in threading.enumerate())


def until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it took more than ten seconds")


@pytest.fixture
def quick(monkeypatch):
    """Compiles are slow after a tenth of a second, and the thread ends a fifth of a second after them."""
    for name, seconds in (("DELAY", 0.1), ("INTERVAL", 0.02), ("PAUSE", 0.2)):
        monkeypatch.setattr(stages, name, seconds)
    yield
    until(lambda: not is_shown_by_a_thread())


@pytest.fixture
def terminal(quick, monkeypatch):
    """A terminal that the line takes for the stderr of this process. Pytest replaces the true one before each test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv(stages.SWITCH, raising=False)
    with pseudo_terminal() as made, open(made.end, "w", closefd=False) as stream:
        made.stream = stream
        monkeypatch.setattr(screen, "sys", SimpleNamespace(stderr=stream, __stderr__=stream, modules=sys.modules))
        yield made


@pytest.fixture
def seen(terminal):
    """The texts that were shown until now."""
    return lambda: re.findall(r"eductor: [^\x1b]*", terminal.text)


@pytest.fixture
def slow(seen):
    """An engine that takes until something was shown anew."""

    def slow(job):
        before = len(seen())
        until(lambda: len(seen()) > before)
        return eductor.ATEN(job)

    return slow


def takes_its_time(job):
    """An engine that takes longer than compiles that are not shown."""
    time.sleep(0.3)
    return eductor.ATEN(job)


def f(x):
    return x.sin() * x.exp()


def left(terminal):
    """What is left on the screen in the end."""
    until(lambda: not is_shown_by_a_thread())
    return Screen().write(terminal.finish()).lines


# ---------------------------------------------------------------------------------------------------- on the terminal


def test_a_slow_compile_is_shown_and_erased(terminal, seen, slow):
    x = torch.randn(3, requires_grad=True)
    eductor.compile(f, engine=slow)(x).sum().backward()
    assert any(re.fullmatch(r"eductor: graph \d+, engine \(forward\), \d+ s", text) for text in seen())
    assert any(re.fullmatch(r"eductor: graph \d+, engine \(backward\), \d+ s", text) for text in seen())
    assert left(terminal) == [""]


def test_a_quick_compile_writes_nothing(terminal, monkeypatch):
    monkeypatch.setattr(stages, "DELAY", 60)
    eductor.compile(f, engine="aten")(torch.randn(3))
    assert left(terminal) == [""]
    assert terminal.text == ""


def test_compiles_with_a_pause_between_them_begin_anew(terminal, seen, monkeypatch):
    monkeypatch.setattr(stages, "DELAY", 1)
    for _ in range(3):
        with shown("stage"):
            time.sleep(0.4)
        until(lambda: not is_shown_by_a_thread())
    assert not seen()


def test_compiles_without_a_pause_count_as_one(terminal, seen):
    for _ in range(6):
        with shown("stage"):
            time.sleep(0.05)
    assert seen()


@pytest.mark.filterwarnings("ignore::eductor.EductorWarning")
def test_an_engine_that_fails_is_erased(terminal, slow):
    def fails(job):
        slow(job)
        raise RuntimeError("out of cheese")

    x = torch.randn(3)
    assert torch.equal(eductor.compile(f, engine=fails)(x), f(x))
    assert left(terminal) == [""]


def test_an_interrupted_stage_is_erased(terminal, seen):
    def interrupted():
        with shown("stage"):
            until(seen)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert left(terminal) == [""]


def test_what_the_program_writes_stays(terminal, slow):
    print("compiling ... ", end="", file=terminal.stream, flush=True)
    eductor.compile(f, engine=slow)(torch.randn(3))
    print("done", file=terminal.stream, flush=True)
    assert left(terminal) == ["compiling ... done"]


def test_a_warning_stands_alone(terminal, seen, monkeypatch):
    monkeypatch.setattr(stages, "DELAY", 0)
    monkeypatch.setattr(stages, "INTERVAL", 1)  # it is not written again until then

    def write(message, *_):
        print(message, file=terminal.stream, flush=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", EductorWarning)
        warnings.showwarning = write
        with shown("stage"):
            until(seen)
            warn("one\ntwo")
    assert left(terminal) == ["one", "two"]


def test_the_stages_of_two_threads_share_the_line(terminal, seen):
    def other():
        with shown("other"):
            until(lambda: any("other" in text for text in seen()))

    with shown("one"):
        until(seen)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        until(lambda: "eductor: one" in seen()[-1])
    assert {text[:12] for text in seen()} == {"eductor: one", "eductor: oth"}
    assert left(terminal) == [""]


def test_a_command_shows_its_own_line(terminal, seen):
    eductor.compile(f, engine=takes_its_time, instruments=[Progress(terminal.stream)])(torch.randn(3))
    assert not seen()
    assert "engine (forward)" in terminal.text
    assert left(terminal) == [""]


def test_an_error_of_the_line_fails_no_compile(terminal, monkeypatch):
    shows = []
    monkeypatch.setattr(Line, "show", lambda *args: shows.append(args) or 1 / 0)

    def slow(job):
        until(lambda: len(shows) > 1)
        return eductor.ATEN(job)

    x = torch.randn(3)
    assert torch.equal(eductor.compile(f, engine=slow, strict=True)(x), f(x))


@pytest.mark.parametrize("place", ["begin", "end"])
def test_an_error_of_the_stages_fails_no_compile(place, terminal, monkeypatch):
    monkeypatch.setattr(stages, "_stages", stages._Stages())
    monkeypatch.setattr(stages._stages, place, lambda running: 1 / 0)
    x = torch.randn(3)
    assert torch.equal(eductor.compile(f, engine="aten", strict=True)(x), f(x))
    stages._stages.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_is_forked_meanwhile_starts_anew(terminal, seen):
    with shown("stage"):
        until(seen)
        child = os.fork()
        if not child:
            signal.alarm(20)
            with shown("of the child"):
                until(lambda: stages._stages._line is not None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        before = len(seen())
        until(lambda: any("stage" in text for text in seen()[before:]))


# -------------------------------------------------------------------------------------------------- where nothing is shown


@contextmanager
def tqdm_bars(*bars):
    module = SimpleNamespace(tqdm=SimpleNamespace(_instances=bars))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tqdm", module)
        yield


@pytest.fixture(params=["replaced", "none", "closed", "file", "dumb", "no TERM", "rank 1", "tqdm", "switch"])
def unwanted(request, terminal, monkeypatch, tmp_path):
    """A process in which no line may be shown."""
    given = screen.sys
    if request.param in ("none", "closed", "file"):
        given.stderr = given.__stderr__ = None if request.param == "none" else open(tmp_path / "log", "w")  # noqa: SIM115
    if request.param == "closed":
        given.stderr.close()
    if request.param == "replaced":
        given.stderr = SimpleNamespace(closed=False, isatty=lambda: True)
    variables = {"dumb": ("TERM", "dumb"), "rank 1": ("LOCAL_RANK", "1"), "switch": (stages.SWITCH, "0")}
    if request.param in variables:
        monkeypatch.setenv(*variables[request.param])
    if request.param == "no TERM":
        monkeypatch.delenv("TERM")
    with tqdm_bars(*["bar"][: request.param == "tqdm"]):
        yield terminal


def test_nothing_is_shown_where_it_is_unwanted(unwanted):
    with shown("stage"):
        assert not is_shown_by_a_thread()
        time.sleep(0.2)
    assert unwanted.text == ""


def test_the_option_switches_it_off(terminal):
    eductor.compile(f, engine=takes_its_time, progress=False)(torch.randn(3))
    assert not is_shown_by_a_thread()
    assert terminal.text == ""


def test_a_bar_that_appears_silences_it(terminal, seen):
    with shown("stage"):
        until(seen)
        with tqdm_bars("bar"):
            time.sleep(0.3)
            before = len(seen())
            time.sleep(0.1)
            assert len(seen()) == before
        until(lambda: len(seen()) > before)


def test_bars_of_tqdm_are_found(terminal):
    tqdm = pytest.importorskip("tqdm").tqdm
    assert stages.free_terminal() is terminal.stream
    with tqdm(total=3, file=io.StringIO()):
        assert stages.free_terminal() is None
    assert stages.free_terminal() is terminal.stream


def test_drawings_of_rich_are_found(terminal, monkeypatch):
    console, live = (pytest.importorskip(f"rich.{name}") for name in ("console", "live"))
    monkeypatch.setattr(screen, "sys", sys)
    for name in ("stderr", "__stderr__"):
        monkeypatch.setattr(sys, name, terminal.stream)
    with live.Live("", console=console.Console(file=sys.stderr, force_terminal=True)):
        assert stages.free_terminal() is None
    assert stages.free_terminal() is sys.stderr


# ---------------------------------------------------------------------------------------------------------- in the log


def logged(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "eductor"]


def test_each_stage_is_a_line_of_the_log(caplog):
    caplog.set_level("INFO", "eductor")
    eductor.compile(f, engine="aten", cache=False)(torch.randn(3))
    form = re.compile(r"graph \d+, (.*), after \d+\.\d s")
    assert [form.fullmatch(line)[1] for line in logged(caplog)] == [
        "pre_grad",
        "autograd",
        "joint",
        "partition",
        "post_grad (forward)",
        "engine (forward)",
        "link",
    ]


def test_the_switches_hold_for_the_log(caplog, monkeypatch):
    caplog.set_level("INFO", "eductor")
    eductor.compile(f, engine="aten", cache=False, progress=False)(torch.randn(3))
    monkeypatch.setenv(stages.SWITCH, "0")
    torch._dynamo.reset()
    eductor.compile(f, engine="aten", cache=False)(torch.randn(3))
    assert not logged(caplog)


# ------------------------------------------------------------------------------------------------------------- kernels


def test_kernels_are_counted(terminal, seen):
    unit, kernel = Future(), Future()
    building(Future())  # of a compile that shows nothing
    with shown("stage"):
        building(unit, 3)
        building(kernel)
        until(lambda: any(text.startswith("eductor: stage: 0 of 4 kernels built, ") for text in seen()))
        unit.set_result(None)
        until(lambda: any("3 of 4 kernels" in text for text in seen()))
        kernel.set_exception(RuntimeError())
        until(lambda: any("4 of 4 kernels" in text for text in seen()))


def test_kernels_of_triton_are_counted(terminal, seen):
    task = Future()
    scope = {"kernel": LambdaFuture(lambda: "built", future=task), "cached": LambdaFuture(lambda: "cached"), "x": 3}

    def wait(compiler, scope):
        until(lambda: any("0 of 1 kernels" in text for text in seen()))
        task.set_result(None)

    with shown("stage"):
        wait_or_defer(wait, AsyncCompile(), scope)
    assert scope == {"kernel": "built", "cached": "cached", "x": 3}


# ------------------------------------------------------------------------------------------------ a process of its own

PROGRAM = """
import sys, threading, time
import torch
import eductor
from eductor.progress import shown

def slow(job):
    time.sleep(2.6)
    return eductor.ATEN(job)

print("step 1", end="", file=sys.stderr, flush=True)
torch.compile(torch.sin, backend="eductor", options={"engine": slow})(torch.ones(3))
print(" of 1", file=sys.stderr)

def endless():
    with shown("endless"):
        time.sleep(60)

threading.Thread(target=endless, daemon=True).start()
time.sleep(0.5)
"""


def test_a_program_on_a_terminal():
    """It is shown after two seconds, and gone in the end, even if a thread still compiles."""
    root = str(Path(eductor.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "TERM": "xterm"}
    with pseudo_terminal() as terminal:
        done = subprocess.run([sys.executable, "-c", PROGRAM], stderr=terminal.end, env=environment, timeout=120)
        text = terminal.finish()
    assert done.returncode == 0
    assert "eductor: graph 1, engine (forward), 2 s" in text
    assert "endless" in text
    assert Screen().write(text).lines == ["step 1 of 1"]
