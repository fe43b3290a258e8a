"""Values that are kept from call to call, as long as the tensors from which they were computed are the same."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class Kept:
    """A function of tensors that is computed anew when one of them was written or replaced.

    Those among them that are written without torch counting it are compared. Threads that call it at once may both
    compute; each gets values of what it gave.
    """

    def __init__(self, compute: GraphModule, uncounted: Collection[int] = ()) -> None:
        self.compute = compute
        self.uncounted = uncounted
        self._last: tuple[_Stamp, Sequence[torch.Tensor]] | None = None  # always set as one
        self._is_cuda = False
        _watch_steps()

    def __call__(self, sources: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self._is_cuda and torch.cuda.is_current_stream_capturing():
            return self._computed(sources)  # what is recorded reads the parameters at each replay
        last = self._last
        if last is not None and last[0].fits(sources):
            return last[1]
        # The stamp comes first: a write from another thread meanwhile makes the values old.
        stamp = _Stamp.of(sources, self.uncounted)
        values = self._computed(sources)
        self._is_cuda = any(x.is_cuda for x in values)
        if stamp is not None:
            if self._is_cuda:
                torch.cuda.current_stream(values[0].device).synchronize()  # a later call may be on another stream
            self._last = stamp, values
        return values

    def _computed(self, sources: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        with torch.inference_mode(False), torch.no_grad():
            values: Sequence[torch.Tensor] = self.compute(*sources)
            return values


@dataclass(frozen=True, slots=True)
class _Stamp:
    """How tensors were when something was computed from them. It keeps none of them alive."""

    step: _Step
    tensors: tuple[tuple[Callable[[], Any], Callable[[], Any], int, int], ...]
    """Of each: itself and its storage, while they live, the count of writes to it, and its address.

    An address tells storages apart only while the old one lives.
    """
    contents: tuple[tuple[int, torch.Tensor], ...]

    @staticmethod
    def of(sources: Sequence[torch.Tensor], uncounted: Collection[int]) -> _Stamp | None:
        """None for tensors whose writes torch does not count, or that have no memory."""
        try:
            tensors = tuple(
                (weakref.ref(x), weakref.ref(x.untyped_storage()), x._version, x.data_ptr()) for x in sources
            )
        except RuntimeError:
            return None
        return _Stamp(_steps.last, tensors, tuple((i, sources[i].detach().clone()) for i in uncounted))

    def fits(self, sources: Sequence[torch.Tensor]) -> bool:
        """Whether nothing happened to the tensors since."""
        for x, (tensor, storage, version, address) in zip(sources, self.tensors, strict=True):
            if tensor() is not x or x._version != version or x.data_ptr() != address or storage() is None:
                return False
        if self.step is not _steps.last:
            return False
        return all(torch.equal(sources[i], then) for i, then in self.contents)


class _Step:
    """Stands for the last step that any optimizer of this process made: not all of their kernels count as writes."""


class _Steps:
    last = _Step()


_steps = _Steps()


@functools.cache
def _watch_steps() -> None:
    register_optimizer_step_post_hook(_note_step)


def _note_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # A new object, not a number: a compiled step that read a number would be compiled for that number.
    _steps.last = _Step()
