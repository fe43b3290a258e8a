"""One compiled graph at one set of sizes: its ordinary calls, measured, and its take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from eductor.launches.decide import TRIAL_CALLS, WARM_CALLS, Times
from eductor.launches.device import Device, Seconds
from eductor.launches.holds import Lease
from eductor.launches.take import Take
from eductor.program.job import Run

T = TypeVar("T")


class ReplayedGraph:
    """A forward, or a backward for one set of defined gradients."""

    def __init__(self, *, always: bool) -> None:
        self._warm_calls = 1 if always else WARM_CALLS
        self._ordinary: list[tuple[float, Seconds]] = []
        self._replayed: list[tuple[float, Seconds]] = []
        self.take: Take | None = None
        self.copied: set[int] = set()
        """The leases, by their place, that callers hold for long: a later take copies them from the start."""
        self.calls = 0
        """Ordinary ones."""
        self.replays = 0

    @property
    def is_warm(self) -> bool:
        """Whether its kernels are loaded and tuned, and its time is measured."""
        return self.calls >= self._warm_calls

    def ordinary(self, run: Run, inputs: list[Any], device: Device) -> Sequence[Any]:
        """Runs it as compiled; the calls after the first are measured until it is warm."""
        self.calls += 1
        if not 1 < self.calls <= self._warm_calls:
            return run(inputs)
        return _measured(lambda: run(inputs), device, self._ordinary)

    def replay(self, inputs: list[Any], device: Device) -> list[Any]:
        """Replays its take; the first replays are measured."""
        take = self.take
        assert take is not None
        self.replays += 1
        if self.replays > TRIAL_CALLS + 1:  # the first follows a capture, which the device may still be at
            return take.replay(inputs)
        return _measured(lambda: take.replay(inputs), device, self._replayed)

    def ordinary_times(self) -> Times | None:
        """The median of its measured calls; None if not all are known yet."""
        return _times(self._ordinary) if self.is_warm else None

    def replayed_times(self) -> Times | None:
        """The median of the replays of its trial; None while it lasts."""
        return _times(self._replayed[1:]) if self.replays > TRIAL_CALLS else None

    def note_copied(self, held: Sequence[Lease]) -> None:
        """Notes those of its leases that are copied from now on."""
        leases = self.take.outputs.leases if self.take is not None else ()
        self.copied |= {place for place, lease in enumerate(leases) if lease in held}

    def let_go(self) -> None:
        """Lets go of its take; its next calls are ordinary."""
        self.take, self.calls, self.replays = None, min(self.calls, 1), 0
        self._ordinary.clear()
        self._replayed.clear()


def _measured(run: Callable[[], T], device: Device, into: list[tuple[float, Seconds]]) -> T:
    end, started = device.timer(), time.perf_counter()
    outputs = run()
    host = time.perf_counter() - started
    into.append((host, end()))
    return outputs


def _times(samples: Sequence[tuple[float, Seconds]]) -> Times | None:
    known = [(host, ask()) for host, ask in samples]
    times = [Times(host, elapsed) for host, elapsed in known if elapsed is not None]
    return Times.median(times) if times and len(times) == len(samples) else None
