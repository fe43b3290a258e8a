"""What is captured and what is kept: decisions from measured times and bytes, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from eductor.graph.no import No

WARM_CALLS = 3
"""Ordinary calls before a capture: kernels are loaded and tuned in the first, the others are measured."""
TRIAL_CALLS = 3
"""Replays that are measured before a take is kept."""
MOST_SHAPES = 4
MOST_CAPTURES = 3
"""Captures for one set of sizes: again after addresses have changed."""
MOST_BLOCKED = 16
"""Calls in a row that find their memory held, after which it is taken to be held for good."""
MOST_FAILURES = 3
"""Failed captures in a process, after which nothing more is captured."""

_REPLAY = 15e-6
_LEAST_SAVING, _LEAST_SHARE = 50e-6, 0.05
_HOST_BOUND = 0.6
_BANDWIDTH = 1e12
"""Bytes that a copy reads and writes in a second, on a device that is not large."""
_SLACK = 64 * 2**20
"""Bytes that any program may take more: the allocator rounds to segments of this order."""


@dataclass(frozen=True, slots=True)
class Times:
    """What a forward, or a forward with its backward, takes: on the host, and from its first launch to its last kernel."""

    host: float
    elapsed: float

    @staticmethod
    def median(samples: Sequence[Times]) -> Times:
        return Times(median(t.host for t in samples), median(t.elapsed for t in samples))

    def __add__(self, other: Times) -> Times:
        return Times(self.host + other.host, self.elapsed + other.elapsed)


def worth_capturing(ordinary: Times, copied: int) -> No | None:
    """Why ordinary calls with these times, and so many bytes of inputs to copy, are not worth a capture."""
    if ordinary.host < _HOST_BOUND * ordinary.elapsed:
        return No(f"the device is the limit: {_ms(ordinary.elapsed)} there, {_ms(ordinary.host)} on the host")
    saving = ordinary.host - _REPLAY - 2 * copied / _BANDWIDTH
    least = max(_LEAST_SAVING, _LEAST_SHARE * ordinary.elapsed)
    if saving < least:
        return No(f"it would save {_ms(max(saving, 0))} of {_ms(ordinary.elapsed)}, less than {_ms(least)}")
    return None


def worth_keeping(ordinary: Times, replayed: Times) -> No | None:
    """Why replays with these times are not kept."""
    now, before = max(replayed.host, replayed.elapsed), max(ordinary.host, ordinary.elapsed)
    if now < (1 - _LEAST_SHARE) * before:
        return None
    return No(f"replayed it takes {_ms(now)}, ordinarily {_ms(before)}")


def fits(needed: int, peak: int, share: float) -> No | None:
    """Why a program that needs these bytes, where ordinary calls needed `peak`, takes too much memory."""
    most = int(peak * (1 + share)) + _SLACK
    if needed <= most:
        return None
    return No(f"it would need {needed >> 20} MiB, more than {most >> 20} (launches_memory={share})")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
