"""Where calls that become one can stand: in front of all that reads them, behind all that they read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch.fx import Node

from eductor.graph.no import No
from eductor.graph.view import GraphView


@dataclass(frozen=True, slots=True)
class Placing:
    """A graph as it is going to be, once what is planned is done, one plan after the other."""

    graph: GraphView
    moved: dict[Node, Node] = field(default_factory=dict)
    """In front of which node a node is going to be moved."""
    made: dict[Node, Node] = field(default_factory=dict)
    """In front of which node a call is going to be computed together with others."""

    def place(self, nodes: Iterable[Node]) -> tuple[Node, list[Node]] | No:
        """In front of which node calls can become one, and what they read that must be moved there; or why not."""
        members = set(nodes)
        first, last = min(members), max(members)
        behind = last.next
        while behind in self.moved:
            behind = behind.next
        before = min(min(user for node in members for user in node.users), behind)
        late: dict[Node, None] = {}
        pending = [operand for node in members for operand in node.all_input_nodes]
        while pending:
            node = pending.pop()
            if node in members:
                return No(f"one of them is computed from {node.name}", node)
            if node in late or self._stands(node, before):
                continue
            if node in self.made or not self.graph.effects.of(node).removable:
                return No(
                    f"{node.name}, which one of them reads, cannot be moved in front of {before.name}", node, before
                )
            late[node] = None
            pending.extend(node.all_input_nodes)
        reads = [operand for node in (*members, *late) for operand in node.all_input_nodes]
        verdict = self.graph.effects.unwritten(reads, first, last)
        return (before, sorted(late)) if verdict else verdict

    def _stands(self, node: Node, before: Node) -> bool:
        """Whether a value is going to be there in front of a node."""
        goal = self.made.get(node) or self.moved.get(node)
        return node < before if goal is None else not before < goal
