"""A rewriter that decomposes what it inserts (stacks, narrows, reshapes) into core ATen operators.

Code that serves graphs before and after autograd inserts Torch-level operators. Engines lower fewer operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import is_symbolic
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import is_row_major, value_of

aten = torch.ops.aten

Insert = Callable[..., Node]


class CoreRewriter(Rewriter):
    """A rewriter that inserts some operators in decomposed form."""

    def insert(self, op: Any, *args: Any, before: Node, like: Node | None = None, **kwargs: Any) -> Node:
        def insert(op: Any, *args: Any, **kwargs: Any) -> Node:
            return super(CoreRewriter, self).insert(op, *args, before=before, like=like, **kwargs)

        decompose = _DECOMPOSITIONS.get(op)
        return insert(op, *args, **kwargs) if decompose is None else decompose(insert, *args, **kwargs)


def in_core_operators(rewrite: Rewriter) -> Rewriter:
    """A rewriter on the same graph, with the same matches and refusals."""
    core = object.__new__(CoreRewriter)
    core.__dict__ = rewrite.__dict__
    return core


def _narrow(insert: Insert, x: Node, dim: int, start: Any, length: Any) -> Node:
    return insert(aten.slice.Tensor, x, dim, start, start + length)


def _stack(insert: Insert, operands: Sequence[Node], dim: int = 0) -> Node:
    return insert(aten.cat, [insert(aten.unsqueeze, x, dim) for x in operands], dim)


def _transpose(insert: Insert, x: Node, a: int, b: int) -> Node:
    order = list(range(value_of(x).dim()))
    order[a], order[b] = order[b], order[a]
    return insert(aten.permute, x, order)


def _movedim(insert: Insert, x: Node, source: int, destination: int) -> Node:
    order = [d for d in range(value_of(x).dim()) if d != source]
    order.insert(destination, source)
    return insert(aten.permute, x, order)


def _flatten(insert: Insert, x: Node, first: int = 0, last: int = -1) -> Node:
    rank = value_of(x).dim()
    sizes = [_size(insert, x, d) for d in range(rank)]
    return _reshape(insert, x, [*sizes[: first % rank], -1, *sizes[last % rank + 1 :]])


def _unflatten(insert: Insert, x: Node, dim: int, sizes: Sequence[Any]) -> Node:
    own = [_size(insert, x, d) for d in range(value_of(x).dim())]
    return _reshape(insert, x, [*own[:dim], *sizes, *own[dim + 1 :]])


def _size(insert: Insert, x: Node, dim: int) -> Any:
    size = value_of(x).shape[dim]
    return size if isinstance(size, int) else insert(aten.sym_size, x, dim)


def _reshape(insert: Insert, x: Node, shape: Sequence[Any]) -> Node:
    """A view, of a copy where the strides allow no view in this shape."""
    if not _can_be_viewed(value_of(x), shape):
        x = insert(aten.clone, x, memory_format=torch.contiguous_format)
    return insert(aten.view, x, list(shape))


def _can_be_viewed(tensor: torch.Tensor, shape: Sequence[Any]) -> bool:
    if is_row_major(tensor):
        return True
    if is_symbolic(tensor) or any(isinstance(size, Node) for size in shape):
        return False
    try:
        torch.empty_strided(tensor.shape, tensor.stride(), device="meta").view(list(shape))
    except RuntimeError:
        return False
    return True


_DECOMPOSITIONS: dict[Any, Callable[..., Node]] = {
    aten.narrow: _narrow,
    aten.stack: _stack,
    aten.transpose: _transpose,
    aten.movedim: _movedim,
    aten.flatten: _flatten,
    aten.unflatten: _unflatten,
    aten.reshape: _reshape,
}
