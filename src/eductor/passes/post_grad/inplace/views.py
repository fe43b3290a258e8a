"""The views that scatters overwrite."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.compat import FakeTensor, OpOverload, made_of
from eductor.graph import Bound, GraphView, tensor_of, value_of

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
