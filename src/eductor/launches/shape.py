"""The takes of a program for one set of sizes, and what was decided about them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from eductor.graph.no import No
from eductor.launches.decide import MOST_BLOCKED, MOST_CAPTURES, Times, fits, worth_capturing, worth_keeping
from eductor.launches.device import Device
from eductor.launches.holds import Hold, Lease
from eductor.launches.replayed_graph import ReplayedGraph

_log = logging.getLogger("eductor")

Defined = tuple[bool, ...]


class Shape:
    """The forward of a program and its backwards, one for each set of defined gradients."""

    def __init__(self, title: str, *, trains: bool, always: bool, share: float) -> None:
        self._title = title
        self._trains = trains
        self._always = always
        self._share = share
        self.forward = ReplayedGraph(always=always)
        self.backwards: dict[Defined, ReplayedGraph] = {}
        self.refusal: No | None = None
        """Why its calls are ordinary."""
        self.calls = self.blocked = 0
        """All calls, and those that were ordinary as a replay would have overwritten memory in use."""
        self.is_kept = always
        self._blocked_in_a_row = 0
        self._captures = 0
        self._ordinary: Times | None = None
        self._before = (0, 0, 0)
        self._needed = 0

    def backward(self, defined: Defined) -> ReplayedGraph:
        """The backward for these defined gradients."""
        if defined not in self.backwards:
            self.backwards[defined] = ReplayedGraph(always=self._always)
        return self.backwards[defined]

    @property
    def is_warm(self) -> bool:
        """Whether the graphs of a step have run often enough to be captured."""
        parts = self._parts()
        return parts is not None and all(part.is_warm for part in parts)

    def wants_capture(self, copied: int) -> bool:
        """Whether a capture pays, as measured, where `copied` bytes of inputs have to be copied in each replay."""
        if self._always:
            return True
        times = [part.ordinary_times() for part in self._parts() or ()]
        if None in times:
            return False
        self._ordinary = sum((t for t in times if t is not None), start=Times(0.0, 0.0))
        self.refuse(worth_capturing(self._ordinary, copied))
        return self.refusal is None

    def captured(self, device: Device, before: tuple[int, int, int]) -> None:
        """Notes the memory that a capture has added."""
        if not self._needed:
            self._before, self._needed = before, before[0]
            self._captures += 1
        after = device.memory()
        self._needed += max(after[2] - before[2], 0)

    def judge(self) -> None:
        """After a replay: ends the trial when all its replays are measured: keeps the takes, or drops them for good."""
        self._blocked_in_a_row = 0
        if self.is_kept:
            return
        parts = self._parts()
        times = [part.replayed_times() for part in parts or ()]
        if not times or None in times or self._ordinary is None:
            return
        replayed = sum((t for t in times if t is not None), start=Times(0.0, 0.0))
        for refusal in (worth_keeping(self._ordinary, replayed), fits(self._needed, self._before[1], self._share)):
            self.refuse(refusal)
        if self.refusal is None:
            self.is_kept = True
            _log.info("%s: launches are replayed, %s", self._title, _gain(self._ordinary, replayed))

    def block(self, device: Device, held: Sequence[Hold]) -> None:
        """Notes a call that is ordinary as these are held; where they are held for good, the takes are captured again."""
        self.blocked += 1
        self._blocked_in_a_row += 1
        if self._blocked_in_a_row >= MOST_BLOCKED:
            self.start_over("the memory of its outputs is always held by somebody")
        else:
            self.copy_from_now_on(device, [h for h in held if isinstance(h, Lease) and h.source is None])

    def copy_from_now_on(self, device: Device, held: Sequence[Lease]) -> None:
        """Outputs that were still held when their memory was needed are copied from their next call on, if memory allows."""
        for lease in held:
            lease.copy_out(device)
        for part in (self.forward, *self.backwards.values()):
            part.note_copied(held)
        self._needed += sum(lease.size for lease in held)
        if not self._always:
            self.refuse(fits(self._needed, self._before[1], self._share))

    def refuse(self, refusal: No | None) -> None:
        """From now on, calls are ordinary for this reason."""
        if refusal is None:
            return
        self.refusal = refusal
        self._drop()
        _log.info("%s: launches are not replayed: %s", self._title, refusal)

    def start_over(self, reason: str) -> None:
        """Drops the takes, to capture them again when the next calls are measured; after several times, for good."""
        if self._captures >= MOST_CAPTURES:
            self.refuse(No(reason))
        else:
            self._drop()

    def to_json(self) -> dict[str, Any]:
        """What was decided, and how calls ran."""
        parts = {"forward": self.forward, **{f"backward {k}": v for k, (_, v) in enumerate(self.backwards.items())}}
        return {
            "state": "ordinary" if self.refusal is not None else "replayed" if self.forward.take else "measured",
            "reason": None if self.refusal is None else str(self.refusal),
            "calls": {name: {"ordinary": part.calls, "replayed": part.replays} for name, part in parts.items()},
            "blocked": self.blocked,
            "captures": self._captures,
        }

    def _parts(self) -> list[ReplayedGraph] | None:
        """The graphs of a step; None if no backward has run yet."""
        if not self._trains:
            return [self.forward]
        if not self.backwards:
            return None
        return [self.forward, max(self.backwards.values(), key=lambda part: part.calls + part.replays)]

    def _drop(self) -> None:
        for part in (*self.backwards.values(), self.forward):
            part.let_go()
        self._needed, self._blocked_in_a_row, self.is_kept = 0, 0, self._always


def _gain(ordinary: Times, replayed: Times) -> str:
    before, after = max(ordinary.host, ordinary.elapsed), max(replayed.host, replayed.elapsed)
    return f"{after * 1e3:.2f} ms a call, ordinarily {before * 1e3:.2f} ms"
