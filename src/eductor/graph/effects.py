"""What a graph reads, writes and aliases; what nothing may move across; may this move, may this alias.

Every tensor lives in a *place*: values that may share memory share a place. What each node does is told by
`node_effects`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from eductor.compat import sort_key
from eductor.graph.meta import UNKNOWN, difference, requires_grad, tensor_of, value_of
from eductor.graph.node_effects import Effect, effect_of, may_be_tensor, tensors_among


@dataclass(frozen=True, slots=True)
class Verdict:
    """Yes, or no with the reason."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


YES = Verdict()


class Effects:
    """The effects of a whole graph, kept up to date by the rewriter.

    `inputs_distinct` says that no two inputs share memory, which somebody must guard; otherwise they may.
    """

    def __init__(self, graph: Graph, *, inputs_distinct: bool = False) -> None:
        self.graph = graph
        self.inputs_distinct = inputs_distinct
        self._effects: dict[Node, Effect] = {}
        self._parents: dict[Node, Node] = {}
        self._members: dict[Node, list[Node]] = {}
        self._marks: list[Node] = []
        self._external: set[Node] = set()
        self._stranger: Node | None = None
        self._outputs: set[Node] | None = None
        self._output_places: set[Node] | None = None
        for node in graph.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Takes a node in, or reads it anew."""
        if node in self._effects:
            self.remove(node)
        effect = self._effects[node] = effect_of(node)
        if node.op == "output":
            self._outputs = self._output_places = None
        for known in (node, *node.all_input_nodes):
            if known not in self._parents:
                self._parents[known] = known
                self._members[known] = [known]
        for operand in tensors_among(node.all_input_nodes) if effect.opaque else effect.shares:
            self._join(node, operand)
        if effect.opaque or (node.op in ("placeholder", "get_attr") and may_be_tensor(node)):
            self._external.add(self.place(node))
            if effect.opaque or not self.inputs_distinct:
                self._stranger = self._stranger or node
                self._join(node, self._stranger)
        if _is_mark(effect):
            bisect.insort(self._marks, node, key=sort_key)

    def remove(self, node: Node) -> None:
        """Forgets an erased node."""
        if _is_mark(self._effects.pop(node)):
            self._marks.remove(node)

    def of(self, node: Node) -> Effect:
        return self._effects[node]

    def place(self, node: Node) -> Node:
        """The representative of all values that may share memory with a node's."""
        while (parent := self._parents[node]) is not node:
            self._parents[node] = self._parents[parent]
            node = parent
        return node

    def reads(self, node: Node) -> set[Node]:
        """The places whose contents a node looks at."""
        return {self.place(n) for n in node.all_input_nodes}

    def writes(self, node: Node) -> set[Node]:
        """The places whose contents a node changes."""
        return {self.place(n) for n in self.of(node).writes}

    def escapes(self, node: Node) -> Verdict:
        """Yes if somebody outside of the graph can hold the memory of a node's value: an input, output, opaque call."""
        place = self.place(node)
        held = place in self._external or place in self._places_of_outputs()
        return YES if held else Verdict(f"nothing outside of the graph shares memory with {node.name}")

    def may_move(self, node: Node, before: Node) -> Verdict:
        """May the node stand directly before another one instead of where it is?"""
        if node.op in ("placeholder", "output") or before.op == "placeholder":
            return Verdict("inputs come first and the output last")
        operand = next((n for n in node.all_input_nodes if not n < before), None)
        if operand is not None:
            return Verdict(f"its operand {operand.name} is defined only at or after {before.name}")
        user = next((u for u in node.users if u < before), None)
        if user is not None:
            return Verdict(f"its user {user.name} stands before {before.name}")
        first, last = (before, node) if before < node else (node, before)
        effect = self.of(node)
        if effect.barrier:
            return Verdict(f"{node.name} is {effect.barrier}")
        reads, writes = self.reads(node), self.writes(node)
        for other in self._marks_between(first, last):
            if other is node:
                continue
            mark = self.of(other)
            if mark.barrier:
                return Verdict(f"{other.name} stands between: {mark.barrier}")
            if mark.ordered and mark.ordered == effect.ordered:
                return Verdict(f"{other.name} stands between, and {mark.ordered} as well")
            if self.writes(other) & (reads | writes):
                return Verdict(f"{other.name} writes between what {node.name} uses")
        reader = (
            next((n for n in _from(first, last) if n is not node and self.reads(n) & writes), None) if writes else None
        )
        return YES if reader is None else Verdict(f"{reader.name} reads between what {node.name} writes")

    def may_alias(self, old: Node, new: Node) -> Verdict:
        """May `new` stand for `old` everywhere, though `old` may have had memory of its own?

        It is for the caller to know that both are equal where `old` stands.
        """
        outputs = self._output_nodes()
        if old in outputs and (new.op in ("placeholder", "get_attr") or new in outputs):
            return Verdict(f"{old.name} is an output of its own, {new.name} is an input or another output")
        mine, other = self.place(old), self.place(new)
        for mark in self._marks_between(old, None):
            if self.of(mark).reshapes and {mine, other} & self.writes(mark):
                return Verdict(f"{mark.name} changes the geometry of {old.name} or {new.name}")
        if self._is_same_memory(old, new):
            return YES
        made = self._made_of(old) if mine is other else set()
        if mine is other:
            leaves = not made.isdisjoint(outputs)
            is_held = other in self._external or any(self.place(n) is other and n not in made for n in outputs)
        else:
            leaves = mine in self._places_of_outputs()
            is_held = other in self._external or other in self._places_of_outputs()
        if leaves and is_held:
            return Verdict(f"{old.name} leaves the graph, and would share memory with {new.name}")
        for mark in self._marks_between(old, None):
            written = self.writes(mark)
            if mine in written:
                return Verdict(f"{mark.name} writes {old.name}")
            if other in written or self.of(mark).opaque:
                if self._is_used_from(mine, mark):
                    return Verdict(f"{mark.name} may write {new.name} while {old.name} is in use")
                if self._may_be_saved(mine):
                    return Verdict(f"{mark.name} may write {new.name}, which autograd may have saved as {old.name}")
        return YES

    def same_kind(self, nodes: Iterable[Node]) -> Verdict:
        """May these values be computed together: same dtype, device, layout, class, requires_grad, no barrier between?"""
        nodes = list(nodes)
        facts: dict[str, Any] = {}
        for node in nodes:
            value = tensor_of(node)
            if value is None:
                return Verdict(f"{node.name} is not known to be a tensor")
            here = {
                "dtype": value.dtype,
                "device": value.device,
                "layout": value.layout,
                "class": type(value),
                "requires_grad": value.requires_grad,
                "the barrier before it": self._last_barrier(node),
            }
            for what, fact in here.items():
                if facts.setdefault(what, fact) != fact:
                    return Verdict(f"{node.name} differs from {nodes[0].name} in {what}")
        return YES

    def _is_same_memory(self, old: Node, new: Node) -> bool:
        """Whether both are, for certain, the same view of the same memory."""
        a, b = value_of(old), value_of(new)
        known = a is not UNKNOWN and difference(a, b) is None and requires_grad(a) == requires_grad(b)
        return known and self._memory(old) == self._memory(new)

    def _memory(self, node: Node) -> tuple[Any, ...]:
        """The value on whose memory a view is, as far as that is certain; of several results, which one."""
        picked: list[Any] = []
        while (effect := self.of(node)).is_view and effect.shares:
            if tensor_of(effect.shares[0]) is None:
                picked.append(node.args[1])
            node = effect.shares[0]
        return (node, picked) if tensor_of(node) is None else (node,)

    def _output_nodes(self) -> set[Node]:
        if self._outputs is None:
            self._outputs = set(self.graph.output_node().all_input_nodes)
        return self._outputs

    def _places_of_outputs(self) -> set[Node]:
        if self._output_places is None:
            self._output_places = {self.place(n) for n in self._output_nodes()}
        return self._output_places

    def _made_of(self, node: Node) -> set[Node]:
        """A node, and what may share its memory because it was computed from it."""
        found = {node}
        pending = [node]
        while pending:
            value = pending.pop()
            for user in value.users:
                if user not in found and (value in self.of(user).shares or self.of(user).opaque):
                    found.add(user)
                    pending.append(user)
        return found

    def _marks_between(self, first: Node, last: Node | None) -> Iterator[Node]:
        """The nodes with effects from `first` up to `last`, or to the end."""
        start = bisect.bisect_left(self._marks, sort_key(first), key=sort_key)
        return itertools.takewhile(lambda m: last is None or m < last, itertools.islice(self._marks, start, None))

    def _is_used_from(self, place: Node, mark: Node) -> bool:
        """Whether a value in a place is used at or after a node, or leaves the graph."""
        return any(not user < mark for n in self._members[place] for user in n.users)

    def _may_be_saved(self, place: Node) -> bool:
        """Whether autograd may keep a value in a place for its backward: something differentiable is computed from it."""
        users = (user for n in self._members[place] for user in n.users)
        return any(requires_grad(v) for user in users for v in _flat(value_of(user)))

    def _last_barrier(self, node: Node) -> Node | None:
        end = bisect.bisect_left(self._marks, sort_key(node), key=sort_key)
        return next((m for m in reversed(self._marks[:end]) if self.of(m).barrier), None)

    def _join(self, a: Node, b: Node) -> None:
        a, b = self.place(a), self.place(b)
        if a is b:
            return
        if len(self._members[a]) > len(self._members[b]):
            a, b = b, a
        self._parents[a] = b
        self._output_places = None
        self._members[b] += self._members.pop(a)
        if a in self._external:
            self._external.add(b)


def _flat(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _is_mark(effect: Effect) -> bool:
    return bool(effect.writes or effect.barrier or effect.ordered)


def _from(first: Node, last: Node) -> Iterator[Node]:
    while first is not last:
        yield first
        first = first.next
