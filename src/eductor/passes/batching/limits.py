"""What limits a fused call: where it can go, and what is observable of the results that it replaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from eductor.graph import GraphView, No, Rewriter, requires_grad, value_of
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


@dataclass(frozen=True, slots=True)
class Placing:
    """The order of a graph after the changes planned so far."""

    graph: GraphView
    moved: dict[Node, Node] = field(default_factory=dict)
    """Nodes to be moved, each with the node before which it goes."""
    made: dict[Node, Node] = field(default_factory=dict)
    """Calls to be fused, each with the node before which the fused call goes."""

    def place(self, nodes: Iterable[Node]) -> tuple[Node, list[Node]] | No:
        """The node before which calls can become one, and the operands that must be moved there; or why not."""
        members = set(nodes)
        first, last = min(members), max(members)
        after = last.next
        while after in self.moved:
            after = after.next
        before = min(min(user for node in members for user in node.users), after)
        late: dict[Node, None] = {}
        pending = [operand for node in members for operand in node.all_input_nodes]
        while pending:
            node = pending.pop()
            if node in members:
                return No(f"one of them is computed from {node.name}", node)
            if node in late or self._is_before(node, before):
                continue
            if node in self.made or not self.graph.effects.of(node).removable:
                return No(f"{node.name}, which one of them reads, cannot be moved before {before.name}", node, before)
            late[node] = None
            pending.extend(node.all_input_nodes)
        reads = [operand for node in (*members, *late) for operand in node.all_input_nodes]
        verdict = self.graph.effects.unwritten(reads, first, last)
        return (before, sorted(late)) if verdict else verdict

    def _is_before(self, node: Node, before: Node) -> bool:
        """Whether a value is going to be computed before a node."""
        goal = self.made.get(node) or self.moved.get(node)
        return node < before if goal is None else not before < goal
