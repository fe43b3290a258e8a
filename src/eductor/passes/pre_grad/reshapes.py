"""Views that have every element once: elementwise functions may be computed before or after them."""

from __future__ import annotations

from typing import Literal

import torch
from torch.fx import Node

from eductor.graph import GraphView, No

aten = torch.ops.aten

RESHAPES = (
    *(aten.view.default, aten.reshape, aten.flatten, aten.unflatten, aten.squeeze, aten.unsqueeze),
    *(aten.permute, aten.transpose, aten.movedim, aten.t, aten.mT, aten.numpy_T),
)


def may_be_view(graph: GraphView, node: Node) -> Literal[True] | No:
    """Whether a value that owns its memory may become a view of a value without other users."""
    effects = graph.effects
    if effects.leaves(node):
        return No(f"{node.name} escapes the graph, and would be a view")
    place = effects.place(node)
    writer = next((m for m in effects.marks_between(node.next, None) if place in effects.writes(m)), None)
    return True if writer is None else No(f"{writer.name} writes {node.name}, which would be a view")
