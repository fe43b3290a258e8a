"""Safety of rewrites: whether nodes may move, values may alias, and calls may be batched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from torch.fx import Node

from eductor.graph.effects.aliasing import leaves, may_alias
from eductor.graph.effects.memory import Memory
from eductor.graph.no import No
from eductor.graph.values.meta import requires_grad, tensor_of


class Effects(Memory):
    """The effects of a whole graph, with the safety checks that passes use."""

    def escapes(self, node: Node) -> Literal[True] | No:
        """Whether code outside of the graph can hold the memory of a node's value: an input, output, opaque call."""
        place = self.place(node)
        held = place in self.external or place in self.outputs()
        return True if held else No(f"nothing outside of the graph shares memory with {node.name}", node)

    def writes_before(self, node: Node) -> bool:
        """Whether anything is written before a node; in a functional graph nothing is."""
        return any(self.of(mark).writes or self.of(mark).opaque for mark in self._marks if mark < node)

    def leaves(self, node: Node) -> bool:
        """Whether an output is, or may be a view of, a node's value."""
        return leaves(self, node)

    def may_move(self, node: Node, before: Node) -> Literal[True] | No:
        """Whether the node may move directly before another one."""
        return (
            self._keeps_order(node, before) and self._passes_marks(node, before) and self._passes_readers(node, before)
        )

    def _keeps_order(self, node: Node, before: Node) -> Literal[True] | No:
        """Whether the node would still come after its operands and before its users."""
        if node.op in ("placeholder", "output") or before.op == "placeholder":
            return No("inputs come first and the output last", node)
        operand = next((n for n in node.all_input_nodes if not n < before), None)
        if operand is not None:
            return No(f"its operand {operand.name} is defined only at or after {before.name}", node, operand, before)
        user = next((u for u in node.users if u < before), None)
        return True if user is None else No(f"its user {user.name} comes before {before.name}", node, user, before)

    def _passes_marks(self, node: Node, before: Node) -> Literal[True] | No:
        """Whether the node may cross the nodes with effects in between."""
        effect = self.of(node)
        if effect.barrier:
            return No(f"{node.name} is {effect.barrier}", node)
        reads = self.reads(node)
        for other in self.marks_between(*_span(node, before)):
            if other is node:
                continue
            mark = self.of(other)
            if mark.barrier:
                return No(f"{other.name} is a barrier in between: {mark.barrier}", node, other)
            if mark.ordered and mark.ordered == effect.ordered:
                return No(f"{other.name} in between also {mark.ordered}", node, other)
            if self.writes(other) & reads:
                return No(f"{other.name} in between writes what {node.name} uses", node, other)
        return True

    def _passes_readers(self, node: Node, before: Node) -> Literal[True] | No:
        """Whether nothing between reads what the node writes."""
        writes = self.writes(node)
        between = _from(*_span(node, before)) if writes else ()
        reader = next((n for n in between if n is not node and self.reads(n) & writes), None)
        return True if reader is None else No(f"{reader.name} in between reads what {node.name} writes", node, reader)

    def may_alias(self, old: Node, new: Node) -> Literal[True] | No:
        """Whether `new` may replace `old` everywhere, even if `old` has separate memory.

        The caller must know that both are equal at `old`.
        """
        return may_alias(self, old, new)

    def same_region(self, nodes: Iterable[Node]) -> Literal[True] | No:
        """Whether no barrier separates these nodes: no switch of grad mode or autocast, no unknown call."""
        first, *others = nodes
        barrier = self.last_barrier(first)
        apart = next((n for n in others if self.last_barrier(n) is not barrier), None)
        return True if apart is None else No(f"a barrier separates {first.name} and {apart.name}", first, apart)

    def unwritten(self, nodes: Iterable[Node], first: Node, last: Node) -> Literal[True] | No:
        """Whether nothing from one node up to another one writes the memory of these values."""
        places = {self.place(n) for n in nodes}
        for mark in self.marks_between(first, last):
            if not places.isdisjoint(self.writes(mark)) or self.of(mark).opaque:
                return No(f"{mark.name} in between may write what is read", mark)
        return True

    def same_kind(self, nodes: Iterable[Node]) -> Literal[True] | No:
        """Whether these calls may be batched: same dtype, device, layout, class, requires_grad, no barrier between."""
        nodes = list(nodes)
        facts: dict[str, Any] = {}
        for node in nodes:
            value = tensor_of(node)
            if value is None:
                return No(f"{node.name} is not known to be a tensor", node)
            here = {
                "dtype": value.dtype,
                "device": value.device,
                "layout": value.layout,
                "class": type(value),
                "requires_grad": requires_grad(value),
                "the barrier before it": self.last_barrier(node),
            }
            for what, fact in here.items():
                if facts.setdefault(what, fact) != fact:
                    return No(f"{node.name} differs from {nodes[0].name} in {what}", node, nodes[0])
        return True


def _span(node: Node, before: Node) -> tuple[Node, Node]:
    """The range that a move crosses, in graph order."""
    return (before, node) if before < node else (node, before)


def _from(first: Node, last: Node) -> Iterator[Node]:
    while first is not last:
        yield first
        first = first.next
