"""Which values of a graph may share memory, and which nodes read, write and order accesses to it.

Every tensor has a *place*: values that may share memory share a place. What one node does is read from
`node_effects`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.fx import Graph, Node

from eductor.compat import sort_key
from eductor.graph.effects.effect import PURE, Effect, may_be_tensor, tensors_among
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.no import No
from eductor.graph.reading.bind import Bound, bind


class Memory:
    """The places of a graph and the effects of its nodes, kept up to date by the rewriter.

    `inputs_distinct` says that no two inputs share memory, which the caller must guard.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        inputs_distinct: bool = False,
        bind: Callable[[Node], Bound | No] = bind,
    ) -> None:
        self.graph = graph
        self._bind = bind
        self.inputs_distinct = inputs_distinct
        self._effects: dict[Node, Effect] = {}
        self._parents: dict[Node, Node] = {}
        self._members: dict[Node, list[Node]] = {}
        self._marks: list[Node] = []
        self.external: set[Node] = set()
        self._external_root: Node | None = None
        self._outputs_by_place: dict[Node, list[Node]] | None = None
        for node in graph.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Adds a node, or updates its entry."""
        if node in self._effects:
            self.remove(node)
        effect = self._effects[node] = effect_of(node, self._bind)
        if node.op == "output":
            self._outputs_by_place = None
        self._parents.setdefault(node, node)
        if effect is PURE and node.op not in ("placeholder", "get_attr"):
            return
        is_opaque = effect.opaque
        for operand in tensors_among(node.all_input_nodes) if is_opaque else effect.shares:
            self._join(node, operand)
        if is_opaque or (node.op in ("placeholder", "get_attr") and may_be_tensor(node)):
            self.external.add(self.place(node))
            if is_opaque or not self.inputs_distinct:
                self._external_root = self._external_root or node
                self._join(node, self._external_root)
        if _is_mark(effect):
            bisect.insort(self._marks, node, key=sort_key)

    def rewired(self, node: Node, *, alike: bool) -> None:
        """Updates a node whose operands changed; a pure node whose new operands are `alike` needs no update."""
        if not alike or self._effects[node] is not PURE or node.op == "output":
            self.add(node)

    def moved(self, node: Node) -> None:
        """Updates the position of a moved node among the nodes with effects, which are in graph order."""
        if _is_mark(self._effects[node]):
            self._marks.remove(node)
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

    def values_in(self, place: Node) -> Sequence[Node]:
        """The values in a place; only places of several values store a list, of which a large graph has few."""
        return self._members.get(place, (place,))

    def reads(self, node: Node) -> set[Node]:
        """The places that a node reads."""
        return {self.place(n) for n in node.all_input_nodes}

    def writes(self, node: Node) -> set[Node]:
        """The places that a node writes."""
        return {self.place(n) for n in self.of(node).writes}

    def outputs(self) -> dict[Node, list[Node]]:
        """The outputs of the graph by their places."""
        if self._outputs_by_place is None:
            self._outputs_by_place = {}
            for node in self.graph.output_node().all_input_nodes:
                self._outputs_by_place.setdefault(self.place(node), []).append(node)
        return self._outputs_by_place

    def made_of(self, node: Node) -> set[Node]:
        """A node, and the values computed from it that may alias it."""

        def aliases(value: Node) -> Iterator[Node]:
            return (user for user in value.users if value in self.of(user).shares or self.of(user).opaque)

        return ancestors([node], aliases)

    def marks_between(self, first: Node, last: Node | None) -> Iterator[Node]:
        """The nodes with effects from `first` up to `last`, or to the end."""
        start = bisect.bisect_left(self._marks, sort_key(first), key=sort_key)
        return itertools.takewhile(lambda m: last is None or m < last, itertools.islice(self._marks, start, None))

    def last_barrier(self, node: Node) -> Node | None:
        end = bisect.bisect_left(self._marks, sort_key(node), key=sort_key)
        return next((m for m in reversed(self._marks[:end]) if self.of(m).barrier), None)

    def _join(self, a: Node, b: Node) -> None:
        self._parents.setdefault(b, b)  # in a graph that is not sorted, it may come later
        a, b = self.place(a), self.place(b)
        if a is b:
            return
        if len(self.values_in(a)) > len(self.values_in(b)):
            a, b = b, a
        self._parents[a] = b
        if self._outputs_by_place and (moved := self._outputs_by_place.pop(a, None)):
            self._outputs_by_place.setdefault(b, []).extend(moved)
        self._members.setdefault(b, [b]).extend(self._members.pop(a, (a,)))
        if a in self.external:
            self.external.add(b)


def ancestors(
    results: Iterable[Any], operands: Callable[[Node], Iterable[Node]] = lambda node: node.all_input_nodes
) -> set[Node]:
    """The nodes among some results, and all that they are computed from; `operands` gives the dependencies of a node."""
    found: set[Node] = set()
    pending = [n for n in results if isinstance(n, Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(operands(node))
    return found


def _is_mark(effect: Effect) -> bool:
    return bool(effect.writes or effect.barrier or effect.ordered)
