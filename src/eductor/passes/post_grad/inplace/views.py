"""Parts of tensors: the views that scatters overwrite; containment and overlap, as far as strides prove it for all sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.compat import FakeTensor, OpOverload, made_of
from eductor.graph import Bound, GraphView, is_row_major, known_equal, known_true, tensor_of, value_of
from eductor.graph.values.meta import hint_of

aten = torch.ops.aten

SCATTERS: dict[Any, tuple[OpOverload, tuple[str, ...]]] = {
    aten.slice_scatter: (aten.slice.Tensor, ("dim", "start", "end", "step")),
    aten.select_scatter: (aten.select.int, ("dim", "index")),
    aten.diagonal_scatter: (aten.diagonal.default, ("offset", "dim1", "dim2")),
    aten.as_strided_scatter: (aten.as_strided.default, ("size", "stride", "storage_offset")),
}
"""For each scatter: the operator of the view that it overwrites, and its arguments."""


class ScatteredParts:
    """Cache of the fake values of the views that scatters overwrite."""

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self._known: dict[Node, torch.Tensor | None] = {}

    def of(self, node: Node) -> torch.Tensor | None:
        """The view that a scatter overwrites; None for other nodes, and where its offset or size depends on data."""
        if node not in self._known:
            bound = self._graph.bind(node) if node.op == "call_function" else None
            is_scatter = isinstance(bound, Bound) and bound.packet in SCATTERS
            self._known[node] = _part(bound) if is_scatter and isinstance(bound, Bound) else None
        return self._known[node]


def view_of(bound: Bound) -> tuple[OpOverload, list[Any]]:
    """The operator of the view that a scatter overwrites, and its arguments besides the tensor."""
    op, names = SCATTERS[bound.packet]
    return op, [bound[name] for name in names]


def _part(bound: Bound) -> torch.Tensor | None:
    tensor = tensor_of(bound["self"])
    if not isinstance(tensor, FakeTensor):
        return None
    op, arguments = view_of(bound)
    values = [
        [value_of(x) for x in given] if isinstance(given, (list, tuple)) else value_of(given) for given in arguments
    ]
    return made_of([tensor, *values], tensor.fake_mode, lambda: op(tensor, *values))


def covers(whole: torch.Tensor | None, part: torch.Tensor) -> bool:
    """Whether `part`, any view of the same memory, provably contains only elements of the tensor `whole`."""
    if whole is None or whole.dtype != part.dtype or not is_row_major(whole):
        return False
    reach = sum((size - 1) * stride for size, stride in zip(part.shape, part.stride(), strict=True))
    start = part.storage_offset() - whole.storage_offset()
    return known_true(start >= 0) and known_true(start + reach < whole.numel())


def has_no_overlap(tensor: torch.Tensor) -> bool:
    """Whether provably no two elements share memory: each stride exceeds the reach of all smaller ones."""
    dims = [(s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if not known_equal(n, 1)]
    if is_row_major(tensor) or any(known_equal(n, 0) for _, n in dims):
        return True
    if any(hint_of(stride) is None for stride, _ in dims):
        return False
    reach: Any = 0
    for stride, size in sorted(dims, key=lambda dim: hint_of(dim[0])):
        if not known_true(stride > reach):
            return False
        reach = reach + (size - 1) * stride
    return True
