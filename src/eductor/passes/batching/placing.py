"""Finds where calls that become one can be placed: before all their readers, after all their operands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch.fx import Node

from eductor.graph import GraphView, No


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
