"""Tracks which dimensions of the scores are batch, query or key through all their views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import GraphView, No, known_equal, tensor_of
from eductor.passes.joint.attention.scores import Moved, Scores
from eductor.passes.joint.attention.weights import Weights
from eductor.views.index_map import IndexMap
from eductor.views.source_views import view_call

Dims = tuple[tuple[int, ...], ...]
"""For each dimension of a value, the axes it consists of, outermost first."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of the scores as the first product has them: batches, then queries, then the keys, with their sizes."""

    sizes: tuple[Any, ...]
    batches: tuple[int, ...]
    """In the order of the second product."""
    queries: tuple[int, ...]
    at: dict[Node, Dims]
    """The dimensions of each value between the products."""
    by_row: bool
    """Whether the first product has its queries in the rows, the keys in the columns."""

    @property
    def key(self) -> int:
        return len(self.sizes) - 1 if self.by_row else len(self.sizes) - 2

    def size(self, axes: Sequence[int]) -> Any:
        return math.prod(self.sizes[a] for a in axes)

    def large(self, axes: Sequence[int]) -> tuple[int, ...]:
        """The axes whose size is not 1."""
        return tuple(a for a in axes if not known_equal(self.sizes[a], 1))


def axes_of(graph: GraphView, scores: Scores, softmax: tuple[Node, int], weights: Weights) -> Axes | No:
    """Follows the axes from one product to the other. The softmax must run over the keys, and the products must agree."""
    shape = _shape(scores.product)
    moving = [step.node for step in scores.steps if isinstance(step, Moved)]
    sizes, rows = _reading((*moving, *weights.moved), shape)
    index_map = IndexMap.whole(scores.product, sizes).reshape(shape)
    at: dict[Node, Dims] = {}
    for node in (scores.product, *(step.node for step in scores.steps), softmax[0], *weights.moved):
        if node in moving or node in weights.moved:
            index_map = _moved(graph, node, index_map)
        if index_map is None:
            return No(f"the axes of the scores are not known after {node.name}", node)
        at[node] = _dims(index_map)
    over = at[softmax[0]][softmax[1]]
    if weights.operand not in at:  # the result of a dropout has the shape of the softmax
        at[weights.operand] = at[softmax[0]]
    return _assigned(sizes, rows, over, at, weights)


def _reading(moved: Sequence[Node], shape: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The sizes in which the product is read, batches split as in the first view, and which axes are rows."""
    wanted = next((found for found in map(_shape, moved) if len(found) > len(shape)), shape)
    batch = math.prod(shape[:-2])
    if len(wanted) > len(shape) and known_equal(wanted[-1], shape[-1]):
        for i in range(len(wanted)):
            if known_equal(math.prod(wanted[:i]), batch) and known_equal(math.prod(wanted[i:-1]), shape[-2]):
                return wanted, tuple(range(i, len(wanted) - 1))
    return shape, (len(shape) - 2,)


def _assigned(
    sizes: tuple[Any, ...], rows: tuple[int, ...], over: tuple[int, ...], at: dict[Node, Dims], weights: Weights
) -> Axes | No:
    """Decides whether rows or columns are the keys: the axis that the softmax and the second product reduce."""
    rank, found, columns = len(_shape(weights.operand)), at[weights.operand], len(sizes) - 1
    row_dim, column_dim = (rank - 2, rank - 1) if weights.is_left else (rank - 1, rank - 2)
    queries, keys = found[row_dim], found[column_dim]
    batches = tuple(axis for dim in found[:-2] for axis in dim)
    large_rows = tuple(r for r in rows if not known_equal(sizes[r], 1))
    large_columns = () if known_equal(sizes[columns], 1) else (columns,)
    if over != keys:
        return No("the softmax does not run over the axis that the second product sums over")
    if (queries, keys) == (large_rows, large_columns):
        by_row, query_axes = True, rows
    elif (queries, keys) == (large_columns, large_rows) and len(rows) == 1:
        by_row, query_axes = False, (columns,)
    else:
        return No("the softmax does not run over the keys alone")
    expected = {a for a in range(len(sizes)) if a not in rows and a != columns and not known_equal(sizes[a], 1)}
    if set(batches) != expected:
        return No("the two products have different batches")
    return Axes(sizes, batches, query_axes, at, by_row)


def _moved(graph: GraphView, node: Node, index_map: IndexMap | None) -> IndexMap | None:
    """The index map after a view; casts and copies change nothing."""
    reading = view_call(graph, node)
    if index_map is None or reading is None:
        return index_map
    moved = reading.apply(index_map)
    whole = moved is not None and all(known_equal(mode.step, 1) for mode in moved.modes)
    return moved if whole and moved is not None and moved.sizes is index_map.sizes else None


def _dims(index_map: IndexMap) -> Dims:
    return tuple(tuple(mode.dim for mode in modes) for modes in index_map.dims)


def _shape(node: Node) -> tuple[Any, ...]:
    tensor = tensor_of(node)
    assert isinstance(tensor, torch.Tensor)
    return tuple(tensor.shape)
