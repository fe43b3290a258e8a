"""The outputs of a take: new tensors over its memory, or over copies of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from eductor import compat
from eductor.launches.device import Device
from eductor.launches.holds import Lease, Saved


class Outputs:
    """How the outputs are made after each replay, from the values of the capture.

    Values at `hidden` positions that share no memory with others are `saved`: no tensor is made for them. An output that
    is an input of the call, or a view of one, is made from the input.
    """

    def __init__(
        self,
        device: Device,
        graph: Any,
        values: Sequence[Any],
        given: Mapping[int, torch.Tensor],
        hidden: Collection[int],
    ) -> None:
        self._device = device
        self._row = [None if isinstance(value, torch.Tensor) else value for value in values]
        self._aliases: list[tuple[int, int, _Part | None]] = []
        self._pieces: list[tuple[int, int, dict[str, Any]]] = []
        self.leases: list[Lease] = []
        tensors = {k: value for k, value in enumerate(values) if isinstance(value, torch.Tensor)}
        inputs = {_memory(x): i for i, x in given.items()}
        seen = {_memory(value) for k, value in tensors.items() if k not in hidden}
        places: dict[int, int] = {}
        saved = {}
        for k, value in tensors.items():
            if value.is_conj() or value.is_neg():
                raise compat.CaptureFailed("an output is conjugated or negated lazily")
            memory = _memory(value)
            if memory in inputs:
                self._aliases.append((k, inputs[memory], _part(value, given[inputs[memory]])))
            elif memory not in seen:
                saved[k] = value
            else:
                if memory not in places:
                    places[memory] = len(self.leases)
                    self.leases.append(Lease(value.untyped_storage()))
                self._pieces.append((k, places[memory], compat.form_of(value)))
        self.saved = Saved(saved, graph)

    def made(self, given: list[Any]) -> list[Any]:
        """The outputs of a replay that was given these inputs."""
        row, storages = list(self._row), [lease.storage for lease in self.leases]
        sources = {k: lease.source for k, lease in enumerate(self.leases) if lease.source is not None}
        if sources:
            targets = self._device.empty([self.leases[k].size for k in sources])
            compat.copy_all(targets, [*sources.values()])
            for k, target in zip(sources, targets, strict=True):
                storages[k] = target.untyped_storage()
        over = self._device.tensor_over
        for k, place, form in self._pieces:
            row[k] = over(storages[place], form)
        for k, i, part in self._aliases:
            row[k] = given[i] if part is None else _view(given[i], part)
        return row


def _memory(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


_Part = tuple[tuple[int, ...], tuple[int, ...], int]
"""Sizes, strides and the distance from the first element of what it is a part of."""


def _part(value: torch.Tensor, given: torch.Tensor) -> _Part | None:
    """Which part of an input an output is; None for all of it."""
    if value.dtype != given.dtype:
        raise compat.CaptureFailed("an output is an input as another dtype")
    distance = int(value.storage_offset()) - int(given.storage_offset())
    whole = (tuple(value.shape), tuple(value.stride()), distance) == (tuple(given.shape), tuple(given.stride()), 0)
    return None if whole else (tuple(value.shape), tuple(value.stride()), distance)


def _view(given: torch.Tensor, part: _Part) -> torch.Tensor:
    sizes, strides, distance = part
    return given.as_strided(sizes, strides, given.storage_offset() + distance)
