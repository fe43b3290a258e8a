"""What is observable of results: which are needed, which are written, where gradients come from; and copies of them."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph import GraphView, Rewriter, requires_grad, value_of
from eductor.graph.effects.order import ancestors

aten = torch.ops.aten


def own_copy(rewrite: Rewriter, node: Node, *, before: Node, like: Node) -> Node:
    """Inserts a contiguous copy."""
    return rewrite.insert(aten.clone, node, memory_format=torch.contiguous_format, before=before, like=like)


def touched(graph: GraphView) -> set[Node]:
    """The places that are written, or that an unknown callable can reach."""

    def find() -> set[Node]:
        effects = graph.effects
        found: set[Node] = set()
        for mark in effects.marks_between(next(graph.nodes), None):
            found |= effects.writes(mark)
            if effects.of(mark).opaque:
                found |= effects.reads(mark)
        return found

    found: set[Node] = graph.derived("batching.touched", find)
    return found


def needed(graph: GraphView) -> set[Node]:
    """The live nodes: a dead one must not become part of a live batch."""

    def find() -> set[Node]:
        return ancestors(node for node in graph.nodes if node.op == "output" or not graph.effects.of(node).removable)

    found: set[Node] = graph.derived("batching.needed", find)
    return found


def gradients(graph: GraphView) -> dict[Node, int]:
    """The outputs that send gradients to each computed value, as bits: a value that gets none must not get zeros."""

    def find() -> dict[Node, int]:
        effects = graph.effects
        bits = {node: 2 << i for i, node in enumerate(graph.output.all_input_nodes)}
        found: dict[Node, int] = {}
        for node in reversed(graph.graph.nodes):
            if node.op in ("placeholder", "get_attr"):
                continue
            value = value_of(node)
            if any(map(requires_grad, value)) if isinstance(value, (list, tuple)) else requires_grad(value):
                seen = bits.get(node, 0) | (not effects.of(node).removable)
                for user in node.users:
                    seen |= found.get(user, 0)
                found[node] = seen
        return found

    found: dict[Node, int] = graph.derived("batching.gradients", find)
    return found
