"""Plans the cheapest sequence of views that reads an index map.

Slices first, then one reshape, one permutation, one reshape, each left out where it changes nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Rewriter, is_row_major, known_equal, value_of
from eductor.views.index_map import IndexMap, Mode, Size

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One operator on the value so far."""

    op: Any
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """The operators that read an index map from its source."""

    index_map: IndexMap
    steps: tuple[ViewStep, ...]

    @property
    def is_view(self) -> bool:
        """Whether the result is a view of the source for certain: no reshape in it has to copy."""
        reshapes = [i for i, step in enumerate(self.steps) if step.op is aten.reshape]
        if not reshapes:
            return True
        source = value_of(self.index_map.source)
        if _is_static(source):
            return self._is_view_of(source)
        return reshapes == [0] and is_row_major(source)

    @property
    def value(self) -> torch.Tensor:
        """The fake value of the result."""
        value: torch.Tensor = value_of(self.index_map.source)
        with getattr(value, "fake_mode", nullcontext()), torch.no_grad():
            for step in self.steps:
                value = step.op(value, *step.args)
        return value

    @property
    def copies(self) -> bool:
        """Whether the result is a copy for certain: a reshape in it cannot be a view."""
        source = value_of(self.index_map.source)
        return _is_static(source) and not self._is_view_of(source)

    def _is_view_of(self, source: torch.Tensor) -> bool:
        """Whether each step is a view, tried on a tensor without contents."""
        value = torch.empty_strided(source.shape, source.stride(), device="meta")
        try:
            for step in self.steps:
                value = (aten.view if step.op is aten.reshape else step.op)(value, *step.args)
        except RuntimeError:
            return False
        return True

    def emit(self, rewrite: Rewriter, *, before: Node, like: Node) -> Node:
        """Inserts the operators in front of a node."""
        value = self.index_map.source
        for step in self.steps:
            args = step.args
            if step.op is aten.reshape:
                args = (_sizes(rewrite, args[0], self.index_map.source, before, like),)
            value = rewrite.insert(step.op, value, *args, before=before, like=like)
        return value


def plan_views(index_map: IndexMap) -> ViewPlan | None:
    """The plan that reads an index map; None if it is empty, or slices, reshapes and one permutation cannot read it."""
    if any(known_equal(mode.size, 0) for mode in index_map.modes):
        return None
    memory: list[Mode] = []
    slices: list[ViewStep] = []
    selects: list[ViewStep] = []
    shape: list[Size] = []
    for dim, size in enumerate(index_map.sizes):
        modes = _in_memory([mode for mode in index_map.modes if mode.dim == dim])
        if modes is None:
            return None
        start = index_map.starts[dim]
        if not modes and not known_equal(size, 1):
            selects.append(ViewStep(aten.select, (dim, start)))
            continue
        length, step = _extent(modes)
        if not (known_equal(start, 0) and known_equal(length, size) and step == 1):
            if not all(isinstance(n, int) for n in (start, length, step)):
                return None
            slices.append(_slice(dim, start, length, step))
        shape.append(length)
        memory += modes
    if not all(isinstance(step.args[1], int) for step in selects):
        return None
    steps = (*_as_read(index_map), *slices, *reversed(selects), *_arranged(shape, memory, index_map))
    if [step.op for step in steps[:2]] == [aten.reshape, aten.reshape]:
        steps = steps[1:]
    own = value_of(index_map.source).shape
    shapes = [step.args[0] for step in steps if step.op is aten.reshape]
    return ViewPlan(index_map, steps) if all(_can_be_spelled(s, own) for s in shapes) else None


def _as_read(index_map: IndexMap) -> list[ViewStep]:
    """The reshape of the source to the shape in which it is read."""
    own = tuple(value_of(index_map.source).shape)
    return [] if known_equal(own, index_map.sizes) else [ViewStep(aten.reshape, (list(index_map.sizes),))]


def _slice(dim: int, start: int, length: int, step: int) -> ViewStep:
    if step == 1:
        return ViewStep(aten.narrow, (dim, start, length))
    return ViewStep(aten.slice, (dim, start, start + (length - 1) * step + 1, step))


def _arranged(shape: Sequence[Size], memory: Sequence[Mode], index_map: IndexMap) -> list[ViewStep]:
    """The steps from the sliced source, whose modes are in this order in memory, to the index map."""
    place = {id(mode): i for i, mode in enumerate(memory)}
    order = [place[id(mode)] for mode in index_map.modes]
    out = list(index_map.shape)
    if order == sorted(order):
        return [] if known_equal(list(shape), out) else [ViewStep(aten.reshape, (out,))]
    apart = [mode.size for mode in memory]
    steps = [] if known_equal(list(shape), apart) else [ViewStep(aten.reshape, (apart,))]
    steps.append(ViewStep(aten.permute, (order,)))
    if not known_equal([apart[i] for i in order], out):
        steps.append(ViewStep(aten.reshape, (out,)))
    return steps


def _in_memory(modes: list[Mode]) -> list[Mode] | None:
    """The modes along one dimension, outermost first, if they walk over a range of it, each element once."""
    if len(modes) > 1:
        if not all(isinstance(mode.step, int) for mode in modes):
            return None
        modes = sorted(modes, key=lambda mode: mode.step, reverse=True)
        for outer, inner in itertools.pairwise(modes):
            if not known_equal(outer.step, inner.step * inner.size):
                return None
    return modes


def _extent(modes: Sequence[Mode]) -> tuple[Size, Size]:
    """How many elements of a dimension modes walk over, and how far apart."""
    return math.prod(mode.size for mode in modes), modes[-1].step if modes else 1


def _sizes(rewrite: Rewriter, shape: Sequence[Size], source: Node, before: Node, like: Node) -> list[Any]:
    """A shape as arguments: one symbolic size is inferred (-1), several are read from the source with `sym_size`."""
    unknown = [size for size in shape if not isinstance(size, int)]
    if len(unknown) == 1:
        return [size if isinstance(size, int) else -1 for size in shape]
    read = {i: _dim_of(size, value_of(source).shape) for i, size in enumerate(shape) if not isinstance(size, int)}
    return [
        rewrite.insert(aten.sym_size, source, read[i], before=before, like=like) if i in read else size
        for i, size in enumerate(shape)
    ]


def _can_be_spelled(shape: Sequence[Size], sizes: Sequence[Size]) -> bool:
    """Whether the symbolic sizes of a shape can be written as arguments, given the sizes of the source."""
    unknown = [size for size in shape if not isinstance(size, int)]
    if len(unknown) == 1:
        return 0 not in shape
    return all(_dim_of(size, sizes) is not None for size in unknown)


def _dim_of(size: Size, sizes: Sequence[Size]) -> int | None:
    return next((d for d, own in enumerate(sizes) if known_equal(own, size)), None)


def _is_static(tensor: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride()))
