"""The state that the rules of the pass share: the graph, its alias sets, and the edits that update both."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import GraphView, No, Rewriter
from eductor.passes.post_grad.inplace.places import Places
from eductor.passes.post_grad.inplace.safety import Safety, Write
from eductor.passes.post_grad.inplace.views import ScatteredParts

aten = torch.ops.aten
_COMPUTED_WHERE_READ = {
    *(aten.full.default, aten.full_like.default, aten.arange.start_step, aten.clone.default, aten._to_copy.default),
    *(aten.constant_pad_nd.default, aten.cat.default, aten.slice_scatter.default, aten.select_scatter.default),
    *(torch.ops.prims.convert_element_type.default, torch.ops.prims.iota.default),
    *(aten.embedding.default, aten.index.Tensor, aten.gather.default, aten.where.self),
}
"""Operators that an engine that fuses does not materialize, besides pointwise ones."""


class Work:
    """One run of the pass."""

    def __init__(self, graph: GraphView, rewrite: Rewriter, *, inputs_disjoint: bool, fuses: bool) -> None:
        self.graph = graph
        self.rewrite = rewrite
        self.places = Places(graph)
        self.parts = ScatteredParts(graph)
        self.safety = Safety(graph, self.places, self.parts, inputs_disjoint=inputs_disjoint)
        self.fuses = fuses

    def reject(self, no: No | str, node: Node) -> None:
        self.rewrite.reject(no, node)

    def may_write(self, write: Write) -> bool:
        """Whether an operand may be written in place; records why not."""
        verdict = self.safety.may_write(write)
        if not verdict:
            self.reject(verdict, write.call)
        return bool(verdict)

    def insert(self, op: Any, *args: Any, before: Node, **kwargs: Any) -> Node:
        """Insert a call before another one, and mark its operands that it writes."""
        node = self.rewrite.insert(op, *args, before=before, like=before, **kwargs)
        self.enter(node)
        return node

    def enter(self, node: Node) -> None:
        """Add an inserted call to the analysis."""
        self.places.enter(node)
        for written in self.graph.effects.of(node).writes:
            self.places.mark_written(written)

    def replace_result(self, operand: Node, result: Node) -> None:
        """Replace a result by the operand that was written."""
        self.places.replace_result(operand, result)
        self.rewrite.replace(result, operand)

    def is_stored(self, operand: Node) -> bool:
        """Whether a value is materialized anyway; an engine that fuses may not store pointwise values."""
        if not self.fuses or self.places.held_outside(operand) or self.places.is_written(operand):
            return True
        maker = self.places.root(operand)[0]
        op = maker.target
        return not isinstance(op, OpOverload) or not (torch.Tag.pointwise in op.tags or op in _COMPUTED_WHERE_READ)
