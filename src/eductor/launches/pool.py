"""The memory that all takes of a device share, and who holds which of it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from eductor import compat
from eductor.graph.no import No
from eductor.launches.device import Device
from eductor.launches.holds import Hold, Lease, Saved

if TYPE_CHECKING:
    from eductor.launches.shape import Shape


class Pool:
    """The holds on the memory of a device's takes. All of it is used under `lock`, on one stream after the other."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.obstacle = device.obstacle()
        """Why nothing is captured or replayed any more."""
        self.failures = 0
        self.shapes: weakref.WeakSet[Shape] = weakref.WeakSet()
        """All programs for all their sizes, with takes or without."""
        self._known: weakref.WeakSet[Hold] = weakref.WeakSet()
        """The memory of the outputs and the saved values of all takes."""
        self._out: list[Hold] = []
        """What was handed out and was held when it was last looked at."""
        self._last_stream: Any = None

    @contextmanager
    def unless_busy(self) -> Iterator[bool]:
        """Takes the lock if no other thread has it; yields whether it did."""
        is_mine = self.lock.acquire(blocking=False)
        try:
            yield is_mine
        finally:
            if is_mine:
                self.lock.release()

    def let_go(self, reason: str) -> bool:
        """Drops all takes, for good, and frees their memory as far as no caller holds it; returns whether there were any."""
        with self.lock:
            found = [shape for shape in self.shapes if shape.forward.take is not None]
            for shape in found:
                shape.refuse(No(reason))
            self.device.release_cache()
        return bool(found)

    def book(self) -> frozenset[int]:
        """The numbers of what the allocator will not give to the next capture."""
        return frozenset(hold.number for hold in [*self._known, *self._out] if hold.in_book)

    def add(self, holds: Iterable[Hold]) -> None:
        """Makes the memory of a new take known."""
        self._known.update(holds)

    def hand_out(self, holds: Iterable[Hold]) -> None:
        """Notes that a call gave these to its caller."""
        self._out.extend(hold for hold in holds if isinstance(hold, Saved) or hold.source is None)

    def held(self, besides: frozenset[int] = frozenset()) -> list[Hold]:
        """What is held now, besides these numbers."""
        self._out = [hold for hold in self._out if hold.is_held()]
        return [hold for hold in self._out if hold.number not in besides]

    def can_capture(self) -> bool:
        """Whether the book has all that is held: a new take must not lie in it."""
        return all(hold.in_book for hold in self.held())

    def follow(self, leases: Sequence[Lease] = ()) -> None:
        """Makes the current stream wait for the last one that used the pool, and for those that used what is overwritten."""
        stream = self.device.stream()
        if self._last_stream is not None and stream != self._last_stream:
            stream.wait_stream(self._last_stream)
        self._last_stream = stream
        for lease in leases:
            if lease.streams:
                for used in lease.streams:
                    stream.wait_stream(used)
                lease.streams.clear()

    def note_use(self, tensor: torch.Tensor, stream: Any) -> None:
        """Notes that a caller uses an output on another stream, as `record_stream` says."""
        storage = tensor.untyped_storage()
        for hold in self._out:
            if isinstance(hold, Lease) and hold.storage is storage:
                hold.streams.add(stream)


_pools: dict[torch.device, Pool] = {}
_record_stream = torch.Tensor.record_stream


def pool_of(device: torch.device) -> Pool:
    """The pool of a CUDA device, with its index."""
    if device not in _pools:
        _pools[device] = Pool(compat.CudaGraphs(device.index))
        torch.Tensor.record_stream = _noted_use  # type: ignore[method-assign, assignment]
    return _pools[device]


def _noted_use(tensor: torch.Tensor, stream: Any) -> None:
    _record_stream(tensor, stream)
    for pool in _pools.values():
        pool.note_use(tensor, stream)


def _forget() -> None:
    """In a forked process the takes of the parent cannot be used or destroyed."""
    for pool in _pools.values():
        pool.obstacle = "a forked process"
        pool.device.forget()


os.register_at_fork(after_in_child=_forget)
