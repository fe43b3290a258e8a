"""The stages of compiles that run now: a line on the terminal while they take long, and one line each in the log.

There is one screen, so all threads share one line, which shows the stage that began last. A thread writes it and ends with
the compile. `EDUCTOR_PROGRESS=0` in the environment and the option `progress=False` switch off all of this.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Condition, Thread
from time import monotonic
from typing import Protocol

from eductor.progress.line import Line
from eductor.progress.screen import free_terminal

SWITCH = "EDUCTOR_PROGRESS"
DELAY, INTERVAL = 2.0, 0.25
"""Seconds before a compile is shown, and between two times that its line is written."""
PAUSE = 1.0
"""Compiles with fewer seconds between them count as one: a forward and its backward, the graphs around a graph break."""
_log = logging.getLogger("eductor")


class Task(Protocol):
    """Work in another thread or process, as `concurrent.futures.Future`."""

    def done(self) -> bool: ...


@dataclass(eq=False)
class Running:
    """A stage that runs, and the tasks that build its kernels, with how many each builds."""

    title: str
    kernels: dict[Task, int] = field(default_factory=dict)

    def __str__(self) -> str:
        kernels = self.kernels.copy()  # the compile may add some meanwhile
        built = sum(count for task, count in kernels.items() if task.done())
        return f"{self.title}: {built} of {sum(kernels.values())} kernels built" if kernels else self.title


_stage: ContextVar[Running | None] = ContextVar("eductor_stage", default=None)


@contextmanager
def shown(title: str, *, is_wanted: bool = True) -> Iterator[None]:
    """Shows a stage while it runs, unless that is not wanted. What goes wrong here fails no compile."""
    if not is_wanted or os.environ.get(SWITCH) == "0":
        yield
        return
    running = Running(title)
    token = _stage.set(running)
    try:
        with suppress(Exception):
            _stages.begin(running)
        yield
    finally:
        _stage.reset(token)
        with suppress(Exception):
            _stages.end(running)


def building(task: Task, kernels: int = 1) -> None:
    """Notes a task that builds kernels for the stage that runs."""
    if (running := _stage.get()) is not None:
        running.kernels[task] = kernels


def erase() -> None:
    """Erases the line before something is printed; it is written again if the compile goes on."""
    with suppress(Exception):
        _stages.erase()


class _Stages:
    """The stages of all threads, and the line that shows them."""

    def __init__(self) -> None:
        self.changed = Condition()
        self._running: list[Running] = []
        self._began = self._ended = -math.inf
        self._line: Line | None = None
        self._thread: Thread | None = None

    def begin(self, running: Running) -> None:
        with self.changed:
            if not self._running and monotonic() - self._ended > PAUSE:
                self._began = monotonic()
            self._running.append(running)
            seconds = monotonic() - self._began
            if self._thread is None and free_terminal() is not None:
                thread = Thread(target=self._show, name="eductor-progress", daemon=True)
                thread.start()
                self._thread = thread
            elif seconds >= DELAY:
                self.changed.notify()  # the line of the stage before was erased just now
        _log.info("%s, after %.1f s", running.title, seconds)

    def end(self, running: Running) -> None:
        with self.changed:
            if running in self._running:  # not in a process that was forked meanwhile
                self._running.remove(running)
            self._ended = monotonic()
            self.erase()

    def erase(self) -> None:
        with self.changed:
            if self._line is not None:
                line, self._line = self._line, None
                line.clear()

    def close(self) -> None:
        """The process ends: nothing may be written from now on, even if a compile still runs in some thread."""
        with self.changed:
            self._running.clear()
            self.erase()

    def _show(self) -> None:
        with self.changed:
            while self._running or monotonic() - self._ended < PAUSE:
                with suppress(Exception):
                    self._write()
                self.changed.wait(INTERVAL)
            self._thread = None

    def _write(self) -> None:
        seconds = monotonic() - self._began
        if not self._running or seconds < DELAY or (terminal := free_terminal()) is None:
            return
        if set(Line.on_screen) <= {self._line}:  # a command, as `eductor explain`, shows its own
            self._line = self._line or Line(terminal)
            self._line.show(f"eductor: {self._running[-1]}, {seconds:.0f} s")


_stages = _Stages()


def _start_anew() -> None:
    """In a forked process, which has neither the thread nor the stages of other threads."""
    global _stages
    _stages = _Stages()
    Line.on_screen.clear()


atexit.register(lambda: _stages.close())
if hasattr(os, "register_at_fork"):
    # No fork while the thread writes: the child would inherit a stream that stays locked.
    os.register_at_fork(
        before=lambda: _stages.changed.acquire(),
        after_in_parent=lambda: _stages.changed.release(),
        after_in_child=_start_anew,
    )
