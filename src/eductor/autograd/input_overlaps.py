"""Inputs that overlap in memory while one of them is written.

They are replaced by one input: their common base, or their whole storage. The trace makes the views of it, so that a
write to one is visible through the others. Which inputs overlap can change from call to call, and no guard checks it,
so each call of a graph that writes to inputs does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eductor.autograd.captured import Captured, Pairs
from eductor.errors import Unsupported
from eductor.program.joint import Signature

Geometry = tuple[tuple[Any, ...], tuple[Any, ...], Any]


def overlapping(inputs: Sequence[Any], written: Collection[int]) -> Pairs:
    """Pairs of inputs of which at least one is written and whose memory may overlap."""
    homes: dict[int, list[int]] = {}
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor):
            homes.setdefault(x.untyped_storage()._cdata, []).append(i)
    return frozenset(
        (i, j)
        for group in homes.values()
        if len(group) > 1
        for k, i in enumerate(group)
        for j in group[k + 1 :]
        if (i in written or j in written) and _extents_meet(inputs[i], inputs[j])
    )


def _extents_meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    (first, end), (other_first, other_end) = _extent(a), _extent(b)
    return bool(first < other_end and other_first < end)


def _extent(x: torch.Tensor) -> tuple[int, int]:
    """The range of bytes of its storage that a tensor spans."""
    if x.numel() == 0:
        return 0, 0
    last = sum((int(size) - 1) * int(stride) for size, stride in zip(x.shape, x.stride(), strict=True))
    start = int(x.storage_offset()) * x.itemsize
    return start, start + (last + 1) * x.itemsize


class Merged(Captured):
    """A captured graph whose overlapping inputs are one input: `flatten` joins them, `enter` makes the views again.

    `signature` is that of the trace with separate inputs; `refuse_views` takes the one that they have as one input.
    """

    def __init__(self, captured: Captured, inputs: Sequence[Any], pairs: Pairs, signature: Signature) -> None:
        super().__init__(captured.module)
        self.pairs = pairs
        self._written = signature.written
        self._groups = [_Group.of(members, inputs, signature) for members in _components(pairs)]
        joined = {i for group in self._groups for i in group.members}
        self._alone = [i for i in range(len(inputs)) if i not in joined]
        # A write to a storage does not move the version counters of the tensors in it.
        by_storage = sorted(i for group in self._groups if not group.has_base for i in group.members)
        self.uncounted_writes = tuple(i for i in by_storage if signature.analysis.inputs[i].seen_write)

    def flatten(self, inputs: Sequence[Any]) -> list[Any]:
        return [*(inputs[i] for i in self._alone), *(group.base(inputs) for group in self._groups)]

    def enter(self, flat: Sequence[Any]) -> list[Any]:
        entries: dict[int, Any] = dict(zip(self._alone, flat, strict=False))
        for group, base in zip(self._groups, flat[len(self._alone) :], strict=True):
            entries.update(group.views(base))
        return [entries[i] for i in range(len(entries))]

    def refuse_views(self, signature: Signature) -> None:
        """Raises for an output that would be a view of a storage: autograd would connect it with no input."""
        first = len(self._alone)
        storages = {("input", first + k) for k, group in enumerate(self._groups) if not group.has_base}
        if any(place in storages for views in signature.views if views is not None for place in views.places):
            raise Unsupported("an output that is a view of overlapping inputs without a common base")

    def fits(self, inputs: Sequence[Any]) -> bool:
        return all(group.fits(inputs) for group in self._groups)

    def written(self, signature: Signature) -> frozenset[int]:
        return self._written

    def sources(self) -> list[Any]:
        sources = super().sources()
        return [sources[i] for i in self._alone]

    def static_inputs(self) -> frozenset[int]:
        static = super().static_inputs()
        return frozenset(k for k, i in enumerate(self._alone) if i in static)


@dataclass(frozen=True, slots=True)
class _Group:
    """Inputs that overlap, and the geometry of each in their common base."""

    members: tuple[int, ...]
    places: tuple[Geometry, ...]
    base_place: Geometry
    has_base: bool

    @staticmethod
    def of(members: tuple[int, ...], inputs: Sequence[Any], signature: Signature) -> _Group:
        tensors = [inputs[i] for i in members]
        if any(not _is_static(x) for x in tensors):
            raise Unsupported("overlapping inputs of unknown size of which one is written")
        bases = {id(_base_of(x)) for x in tensors}
        own_history = len(bases) > 1 or any(x.is_leaf and x._base is not None for x in tensors)
        # A write through the storage would give its history to none of the tensors in it.
        gets_history = len(bases) > 1 and any(signature.analysis.inputs[i].flows for i in members)
        if gets_history or (own_history and any(x.requires_grad for x in tensors)):
            raise Unsupported("overlapping inputs with several histories in autograd of which one is written")
        if len(bases) > 1 and len({(x.dtype, x.is_inference()) for x in tensors}) > 1:
            raise Unsupported("overlapping inputs of several dtypes of which one is written")
        base = _base_of(tensors[0]) if len(bases) == 1 else _whole_storage(tensors[0])
        return _Group(members, tuple(_geometry(x) for x in tensors), _geometry(base), len(bases) == 1)

    def base(self, inputs: Sequence[Any]) -> torch.Tensor:
        first = inputs[self.members[0]]
        return _base_of(first) if self.has_base else _whole_storage(first)

    def views(self, base: torch.Tensor) -> dict[int, torch.Tensor]:
        same = _geometry(base)
        return {
            i: base if self.has_base and place == same else base.as_strided(*place)
            for i, place in zip(self.members, self.places, strict=True)
        }

    def fits(self, inputs: Sequence[Any]) -> bool:
        tensors = [inputs[i] for i in self.members]
        if len({id(_base_of(x)) for x in tensors}) > 1 and self.has_base:
            return False
        if any(_geometry(x) != place for x, place in zip(tensors, self.places, strict=True)):
            return False
        return _geometry(self.base(inputs)) == self.base_place


def _components(pairs: Pairs) -> list[tuple[int, ...]]:
    """Inputs that overlap with one another, directly or through others."""
    group_of: dict[int, set[int]] = {}
    for i, j in sorted(pairs):
        joined = group_of.get(i, {i}) | group_of.get(j, {j})
        for member in joined:
            group_of[member] = joined
    return sorted({tuple(sorted(group)) for group in group_of.values()})


def _base_of(x: torch.Tensor) -> torch.Tensor:
    return x._base if x._base is not None else x


def _whole_storage(x: torch.Tensor) -> torch.Tensor:
    storage = x.untyped_storage()
    count = storage.nbytes() // x.itemsize
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(storage, 0, (count,), (1,))


def _geometry(x: torch.Tensor) -> Geometry:
    return tuple(x.shape), tuple(x.stride()), x.storage_offset()


def _is_static(x: torch.Tensor) -> bool:
    return all(type(n) is int for part in _geometry(x)[:2] for n in part)


def watching_overlaps(
    run: Callable[..., Any],
    captured: Captured,
    written: Collection[int],
    variant: Callable[[Pairs, tuple[Any, ...]], Callable[..., Any]],
) -> Callable[..., Any]:
    """Calls `run` while inputs overlap as they did when it was compiled, and the `variant` for their overlap if they do not.

    Inputs at the addresses of an earlier call in which nothing overlapped, in tensors of the same sizes, do not overlap.
    Where they do, each call checks that their sizes, strides and offsets in their common base are the same; if not, the
    graph runs as it was captured.
    """
    held = captured.held
    seen: list[tuple[Any, ...]] = [()]

    def apart(*args: Any) -> Any:
        addresses = tuple([x.data_ptr() if isinstance(x, torch.Tensor) else x for x in (*held, *args)])
        if addresses != seen[0]:
            if pairs := overlapping([*held, *args], written):
                return variant(pairs, args)(*args)
            seen[0] = addresses
        return run(*args)

    def merged(*args: Any) -> Any:
        inputs = [*held, *args]
        pairs = overlapping(inputs, written)
        if pairs != captured.pairs:
            return variant(pairs, args)(*args)
        return run(*args) if captured.fits(inputs) else captured.module(*args)

    return merged if isinstance(captured, Merged) else apart
