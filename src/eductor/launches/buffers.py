"""The fixed memory from which a take reads its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from eductor import compat
from eductor.graph.no import No
from eductor.launches.device import Device


class Buffers:
    """The inputs of a take: static ones in place, those in memory of its forward as they are, others copied in."""

    def __init__(
        self, device: Device, given: list[Any], static: Iterable[int], fixed: Mapping[int, torch.Tensor]
    ) -> None:
        """`given` are the inputs of the call that is captured; `fixed` are inputs whose memory is known, which no call gives."""
        self._device = device
        self.values = list(given)
        self._static = sorted(static)
        self._addresses: list[int | None] = [None] * len(given)
        for i in self._static:
            self._addresses[i] = given[i].data_ptr()
        tensors = {i for i, x in enumerate(given) if isinstance(x, torch.Tensor)}
        self._copied = sorted(tensors - {*self._static, *fixed})
        self._narrowed: dict[int, list[int]] = {}
        self._borrowed = [*self._static, *fixed]
        for i, value in fixed.items():
            self.values[i] = value
        for i in self._copied:
            self.values[i] = torch.empty_strided(
                given[i].shape, given[i].stride(), dtype=given[i].dtype, device=given[i].device
            )
            expanded = [d for d, stride in enumerate(given[i].stride()) if stride == 0]
            if expanded:
                self._narrowed[i] = expanded
        self._targets = [self._written(i, self.values[i]) for i in self._copied]

    def given(self) -> dict[int, torch.Tensor]:
        """The inputs that each call gives, as the graph is captured with them."""
        return {i: self.values[i] for i in (*self._static, *self._copied)}

    def let_go(self) -> None:
        """Lets go of the inputs in memory of others, which would see it as held."""
        for i in self._borrowed:
            self.values[i] = None

    def fit(self, given: list[Any]) -> bool:
        """Whether static inputs lie where they lay, and the others have the form that was captured."""
        if not self._device.same_addresses(given, self._addresses, self._static):
            return False
        return all(type(given[i]) in _PLAIN and given[i].shape == self.values[i].shape for i in self._copied)

    def fill(self, given: list[Any]) -> None:
        """Copies the inputs of a call in."""
        compat.copy_all(self._targets, [self._written(i, given[i]) for i in self._copied])

    def _written(self, i: int, value: torch.Tensor) -> torch.Tensor:
        """The elements of an input: of an expanded dimension the first alone."""
        for d in self._narrowed.get(i, ()):
            value = value.narrow(d, 0, 1)
        return value


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def why_no_buffer(given: list[Any], static: Iterable[int], device: torch.device) -> No | None:
    """Why the inputs of a call cannot be copied into fixed memory."""
    unmoved = set(static)
    for i, value in enumerate(given):
        if not isinstance(value, torch.Tensor):
            if value is not None and not isinstance(value, int):
                return No(f"input {i} is a {type(value).__name__}")
            continue
        if type(value) not in _PLAIN:
            return No(f"input {i} is a {type(value).__name__}")
        if value.device != device:
            return No(f"input {i} lies on {value.device}")
        narrowed = value
        for d, stride in enumerate(value.stride()):
            narrowed = narrowed.narrow(d, 0, 1) if stride == 0 and value.shape[d] else narrowed
        if i not in unmoved and compat.has_inner_overlap(narrowed):
            return No(f"elements of input {i} share memory")
    return None
