"""The state of weights when values were computed from them, to see later whether they were written."""

from __future__ import annotations

import ctypes
import functools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from eductor.compat import storage_owners

WHOLE = 16 * 1024
"""Up to this many bytes, the content of a weight in CPU memory is compared whole."""

SAMPLED = 256
"""How many words of eight bytes are compared of a larger weight."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The state of tensors at the time values were computed from them. It keeps no tensor alive.

    It has no weak references to tensors: `torch.utils.swap_tensors` refuses tensors with one.
    """

    step: _Step
    tensors: tuple[tuple[int, Callable[[], Any], int, int, int, memoryview, bytes], ...]
    """Of each: its id, a weak reference to its storage, its version and its address, which is unique only while the
    storage lives; how many tensors may own the storage; the memory that is compared, and what it contained."""
    contents: tuple[tuple[int, torch.Tensor], ...]

    @staticmethod
    def of(sources: Sequence[torch.Tensor], uncounted: Collection[int]) -> Stamp | None:
        """None for tensors that can be written unseen: without a version counter, or in memory that others hold."""
        if any(x.device.type == "cpu" and x.is_shared() for x in sources):
            return None
        try:
            storages = [x.untyped_storage() for x in sources]
            owners = Counter(storage.data_ptr() for storage in {id(x): x.untyped_storage() for x in sources}.values())
            memory = [_compared(x, whole=i in uncounted) for i, x in enumerate(sources)]
            stamp = Stamp(
                _steps.last,
                tuple(
                    (id(x), weakref.ref(s), x._version, x.data_ptr(), owners[s.data_ptr()], part, part.tobytes())
                    for x, s, part in zip(sources, storages, memory, strict=True)
                ),
                tuple((i, sources[i].detach().clone()) for i in uncounted if sources[i].device.type != "cpu"),
            )
        except RuntimeError:
            return None
        if any(part.nbytes < x.nbytes for x, part in zip(sources, memory, strict=True)):
            _watch_steps()
        del storages
        return stamp if stamp.fits(sources) else None

    def fits(self, sources: Sequence[torch.Tensor]) -> bool:
        """Whether the tensors are unchanged since."""
        for x, (name, weak, version, address, owners, memory, content) in zip(sources, self.tensors, strict=True):
            storage = weak()  # holds the memory while it is read
            if storage is None or id(x) != name or x._version != version or x.data_ptr() != address:
                return False
            if storage_owners(storage) > owners or memory.tobytes() != content:
                return False
        if self.step is not _steps.last:
            return False
        return all(torch.equal(sources[i], then) for i, then in self.contents)


def _compared(x: torch.Tensor, whole: bool) -> memoryview:
    """The memory of a tensor that is compared: all of it, or evenly spaced words; nothing on other devices.

    It does not keep the memory alive. The distance of the words is prime, so that they are in different columns.
    """
    if x.device.type != "cpu" or not x.numel():
        return memoryview(b"")
    size = x.element_size() * (1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)))
    if whole or size <= WHOLE:
        return memoryview((ctypes.c_char * size).from_address(x.data_ptr())).cast("B")
    words = memoryview((ctypes.c_char * (size // 8 * 8)).from_address(x.data_ptr())).cast("B").cast("q")
    return words[:: _prime_up_to(len(words) // SAMPLED)]


def _prime_up_to(limit: int) -> int:
    """The largest prime up to a limit."""
    return next(n for n in range(limit, 1, -1) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))


class _Step:
    """A marker for the last optimizer step in this process, as not all optimizer kernels bump versions."""


class _Steps:
    last = _Step()


_steps = _Steps()


@functools.cache
def _watch_steps() -> None:
    """Notes optimizer steps from now on: for weights that are not compared whole."""
    register_optimizer_step_post_hook(_note_step)


def _note_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # A new object, not a number: a compiled optimizer step would be specialized on a number.
    _steps.last = _Step()
