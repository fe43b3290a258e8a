"""What a view reads of its source, as numbers: the algebra of slices, permutations and reshapes.

An index map says where each element of a view is: along dimension `d` of the source, at `starts[d]` plus, for each of
the modes that walk along `d`, the index times the mode's step. A dimension of the view is a list of modes, outermost first:
a reshape splits modes or puts them into one dimension, a permutation moves dimensions, a slice moves the start. A view
that no index map expresses is None. Sizes may be symbolic: they are equal only where that is known for certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.fx import Node

from eductor.graph import known_equal, known_true

Size = Any
"""An integer, or a symbolic one."""


class Mode(NamedTuple):
    """`size` steps of `step` elements along the dimension `dim` of the source."""

    dim: int
    step: Size
    size: Size


Modes = tuple[Mode, ...]


@dataclass(frozen=True, slots=True)
class IndexMap:
    """The elements that a view reads of its source."""

    source: Node
    sizes: tuple[Size, ...]
    """The shape in which the source is read: its own, or that of a reshape of all of it."""
    starts: tuple[Size, ...]
    dims: tuple[Modes, ...]

    @staticmethod
    def whole(source: Node, shape: Sequence[Size]) -> IndexMap:
        """The source itself."""
        dims = tuple(_tidy([Mode(d, 1, size)]) for d, size in enumerate(shape))
        return IndexMap(source, tuple(shape), (0,) * len(dims), dims)

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(math.prod(mode.size for mode in modes) for modes in self.dims)

    @property
    def modes(self) -> Modes:
        return tuple(mode for modes in self.dims for mode in modes)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its source, in the shape in which that is read."""
        whole = IndexMap.whole(self.source, self.sizes)
        return known_equal(self.starts, whole.starts) and known_equal(self.dims, whole.dims)

    # ------------------------------------------------------------------------------------------- views of the view

    def permute(self, order: Sequence[int]) -> IndexMap:
        return self._with(tuple([self.dims[d] for d in order]))

    def unsqueeze(self, dim: int) -> IndexMap:
        return self._with((*self.dims[:dim], (), *self.dims[dim:]))

    def squeeze(self, dim: int) -> IndexMap | None:
        """Without a dimension of size 1; itself if the dimension is larger; None if its size is not known."""
        if not self.dims[dim]:
            return self._with((*self.dims[:dim], *self.dims[dim + 1 :]))
        return self if known_true(self.shape[dim] != 1) else None

    def select(self, dim: int, index: Size) -> IndexMap | None:
        found = self.narrow(dim, index, 1)
        return found.squeeze(dim) if found is not None else None

    def narrow(self, dim: int, start: Size, length: Size, step: int = 1) -> IndexMap | None:
        """`length` indices of a dimension from `start` on, `step` apart."""
        modes = self.dims[dim]
        if known_equal(start, 0) and known_equal(length, self.shape[dim]) and step == 1:
            return self
        if not modes:  # of one element, less than the whole: empty
            return None
        if len(modes) == 1:
            (mode,) = modes
            return self._moved(dim, mode, start, (Mode(mode.dim, mode.step * step, length),))
        inner = math.prod(mode.size for mode in modes[1:])
        if step != 1 or not all(isinstance(n, int) for n in (inner, start, length)) or not inner:
            return None
        if start % inner == 0 and length % inner == 0:
            outer = Mode(modes[0].dim, modes[0].step, length // inner)
            return self._moved(dim, modes[0], start // inner, (outer, *modes[1:]))
        if length and start // inner == (start + length - 1) // inner:  # all of it within one step of the outer mode
            found = self._moved(dim, modes[0], start // inner, modes[1:])
            return found.narrow(dim, start % inner, length)
        return None

    def _moved(self, dim: int, mode: Mode, by: Size, modes: Modes) -> IndexMap:
        starts = list(self.starts)
        starts[mode.dim] = starts[mode.dim] + by * mode.step
        return IndexMap(self.source, self.sizes, tuple(starts), (*self.dims[:dim], _tidy(modes), *self.dims[dim + 1 :]))

    def reshape(self, shape: Sequence[Size]) -> IndexMap | None:
        """The same elements in row-major order, in another shape."""
        left = list(self.modes)
        dims: list[Modes] = []
        for size in reversed(shape):  # from the inside out: there the sizes are numbers, if they are anywhere
            taken: list[Mode] = []
            while not known_equal(product := math.prod(mode.size for mode in taken), size):
                if not left or (parts := _cut(left.pop(), product, size)) is None:
                    return IndexMap.whole(self.source, shape) if self._is_in_order else None
                left += parts[:-1]
                taken.append(parts[-1])
            dims.append(_tidy(taken[::-1]))
        return self._with(tuple(dims[::-1])) if not left else None

    @property
    def _is_in_order(self) -> bool:
        """Whether it has all elements of the source in their order, in any shape."""
        whole = IndexMap.whole(self.source, self.sizes)
        return known_equal(self.starts, whole.starts) and known_equal(self.modes, whole.modes)

    # --------------------------------------------------------------------------------------------------- joining

    def extended(self, other: IndexMap, dim: int) -> IndexMap | None:
        """The concatenation of both along a dimension; None unless the other map starts where this one ends."""
        mine, its = self.dims[dim], other.dims[dim]
        if not self._differs_only_in(other, dim) or max(len(mine), len(its)) != 1:
            return None
        walk = (mine or its)[0]  # a map of one element takes the step of the other
        if mine and its and not (mine[0].dim == its[0].dim and known_equal(mine[0].step, its[0].step)):
            return None
        length, more = (modes[0].size if modes else 1 for modes in (mine, its))
        ends = [start + (length * walk.step if d == walk.dim else 0) for d, start in enumerate(self.starts)]
        if not known_equal(ends, list(other.starts)):
            return None
        longer = Mode(walk.dim, walk.step, length + more)
        return self._with((*self.dims[:dim], (longer,), *self.dims[dim + 1 :]))

    def distance(self, other: IndexMap) -> tuple[int, Size] | None:
        """The dimension of the source along which another map of the same form starts after this one, and how far."""
        if not _same_source(self, other) or not known_equal(self.dims, other.dims):
            return None
        apart = [d for d, (a, b) in enumerate(zip(self.starts, other.starts, strict=True)) if not known_equal(a, b)]
        if len(apart) != 1:
            return None
        step = other.starts[apart[0]] - self.starts[apart[0]]
        return (apart[0], step) if known_true(step > 0) else None

    def repeated(self, count: int, dim: int, along: int, step: Size) -> IndexMap:
        """`count` index maps of this form, `step` apart along a dimension of the source, concatenated along `dim`."""
        modes = _tidy((Mode(along, step, count), *self.dims[dim]))
        return self._with((*self.dims[:dim], modes, *self.dims[dim + 1 :]))

    def _differs_only_in(self, other: IndexMap, dim: int) -> bool:
        return _same_source(self, other) and known_equal(self._without(dim), other._without(dim))

    def _with(self, dims: tuple[Modes, ...]) -> IndexMap:
        return IndexMap(self.source, self.sizes, self.starts, dims)

    def _without(self, dim: int) -> tuple[Modes, ...]:
        return (*self.dims[:dim], *self.dims[dim + 1 :])


def joined(maps: Sequence[IndexMap], dim: int) -> list[tuple[IndexMap, int]]:
    """Concatenated index maps, with neighbours merged where they can be, each with the number of maps in it."""
    found = [(index_map, 1) for index_map in maps]
    while True:
        fewer = list(_runs(found, dim))
        if len(fewer) == len(found):
            return found
        found = fewer


def _runs(maps: Sequence[tuple[IndexMap, int]], dim: int) -> Iterator[tuple[IndexMap, int]]:
    i = 0
    while i < len(maps):
        end, index_map = _run(maps, i, dim)
        yield index_map, sum(count for _, count in maps[i:end])
        i = end


def _run(maps: Sequence[tuple[IndexMap, int]], first: int, dim: int) -> tuple[int, IndexMap]:
    """The end of the longest run of index maps from `first` on that are one index map, and that map."""
    index_map, end = maps[first][0], first + 1
    while end < len(maps) and (longer := index_map.extended(maps[end][0], dim)) is not None:
        index_map, end = longer, end + 1
    if end > first + 1 or end == len(maps) or (apart := index_map.distance(maps[end][0])) is None:
        return end, index_map
    while end < len(maps) and known_equal(maps[end - 1][0].distance(maps[end][0]), apart):
        end += 1
    return end, index_map.repeated(end - first, dim, *apart)


def _tidy(modes: Sequence[Mode]) -> Modes:
    """Drops modes of size 1, and merges neighbours where the outer one's step is the extent of the inner one."""
    found: list[Mode] = []
    for mode in modes:
        if known_equal(mode.size, 1):
            continue
        if found and found[-1].dim == mode.dim and known_equal(found[-1].step, mode.step * mode.size):
            found[-1] = Mode(mode.dim, mode.step, found[-1].size * mode.size)
        else:
            found.append(mode)
    return tuple(found)


def _cut(mode: Mode, product: Size, size: Size) -> Modes | None:
    """Splits a mode for a dimension of this size, which has `product` so far: the rest, if any, and the part it takes."""
    if not isinstance(size, int) or not isinstance(product, int):
        return (mode,)
    if not product or size % product:
        return None
    missing = size // product
    if isinstance(mode.size, int) and mode.size and missing % mode.size == 0:
        return (mode,)
    if not missing or not known_true(mode.size % missing == 0):
        return None
    return Mode(mode.dim, mode.step * missing, mode.size // missing), Mode(mode.dim, mode.step, missing)


def _same_source(a: IndexMap, b: IndexMap) -> bool:
    if a.source is not b.source or len(a.dims) != len(b.dims):
        return False
    return a.sizes is b.sizes or known_equal(a.sizes, b.sizes)
