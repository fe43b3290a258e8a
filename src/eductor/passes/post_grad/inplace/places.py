"""Which values of a graph share memory, in a graph whose inputs lie apart.

What a compile hands to the post-grad stage is so: inputs that overlap with a written one were taken as one. `Effects`
assumes less, because it serves stages where nobody has looked.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.graph.effects.effect import may_be_tensor, tensors_among
from eductor.graph.snapshot import attribute_or_none
from eductor.graph.values.meta import difference, tensor_of, value_of
from eductor.graph.view import GraphView

Use = tuple[Node, Node]
"""A value, and a node that takes it."""


@dataclass(eq=False)
class _Place:
    """Values that may share memory, and what is known of all of them."""

    nodes: list[Node]
    uses: list[Use]
    holders: list[Node]
    is_written: bool = False


class Places:
    """Values that may share memory are in one place; each is a view of a root, as far as that is certain.

    It is asked in the order of the graph, so that what lies behind is forgotten, and a long chain of writes to one place
    costs no more than so many writes to several.
    """

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self._place: dict[Node, _Place] = {}
        self._homes: dict[Hashable, Node] = {}
        for node in graph.nodes:
            self.enter(node)

    def enter(self, node: Node) -> None:
        """Takes a node in."""
        is_held = node.op in ("placeholder", "get_attr") or self._may_keep(node)
        self._place[node] = _Place([node], [(node, user) for user in node.users], [node] if is_held else [])
        if self._may_keep(node):
            for operand in tensors_among(node.all_input_nodes):
                self.join(node, operand)
        elif self._is_picked(node):
            # The results of one call lie apart, unless they are views; each may be picked more than once.
            self.join(node, self._homes.setdefault((node.args[0], node.args[1]), node))
        else:
            for operand in self._graph.effects.of(node).shares:
                self.join(node, operand)
        if node.op == "get_attr":
            self.join(node, self._homes.setdefault(self._memory_of_attribute(node), node))

    def __contains__(self, node: Node) -> bool:
        return node in self._place

    def join(self, a: Node, b: Node) -> None:
        """From now on two values may share memory."""
        small, large = sorted((self._place[a], self._place[b]), key=lambda place: len(place.nodes))
        if small is large:
            return
        large.nodes += small.nodes
        large.uses += small.uses
        large.holders += small.holders
        large.is_written |= small.is_written
        for node in small.nodes:
            self._place[node] = large

    def stand_for(self, operand: Node, result: Node) -> None:
        """An operand is about to take the place of a result."""
        self.join(result, operand)
        place = self._place[operand]
        place.uses = [(operand if node is result else node, user) for node, user in place.uses]

    def uses_after(self, node: Node, call: Node) -> list[Use]:
        """Who takes a value that may share memory with a node's, after a call; nobody asks for earlier ones later on."""
        place = self._place[node]
        place.uses = [use for use in place.uses if call < use[1]]
        return place.uses

    def share(self, a: Node, b: Node) -> bool:
        return self._place[a] is self._place[b]

    def held_outside(self, node: Node) -> list[Node]:
        """Through what somebody outside of the graph, or a callee that nobody knows, holds the memory of a value."""
        return self._place[node].holders

    def root(self, node: Node) -> tuple[Any, ...]:
        """The value on whose memory a view is, as far as that is certain; of several results, which one."""
        *_, last = self.views(node)
        if self._is_picked(last):
            return (last.args[0], last.args[1])
        return (last,)

    def views(self, node: Node) -> list[Node]:
        """A value, what it is a view of, and so on up to a value that is no view."""
        found = [node]
        while not self._is_picked(node) and (effect := self._graph.effects.of(node)).is_view and effect.shares:
            node = effect.shares[0]
            found.append(node)
        return found

    def same(self, a: Node, b: Node) -> bool:
        """Whether two values are, for certain, the same view of the same memory."""
        return self.root(a) == self.root(b) and difference(value_of(a), value_of(b)) is None

    def mark_written(self, node: Node) -> None:
        """The memory of a value is written in place."""
        self._place[node].is_written = True

    def is_written(self, node: Node) -> bool:
        return self._place[node].is_written

    def _may_keep(self, node: Node) -> bool:
        """Whether a callee may hold on to its operands; a kernel only writes them."""
        is_kernel = node.target is torch.ops.higher_order.triton_kernel_wrapper_mutation
        return self._graph.effects.of(node).opaque and not is_kernel

    def _is_picked(self, node: Node) -> bool:
        """Whether a node is one of the results of a call that returns new ones."""
        if node.target is not operator.getitem or tensor_of(node.args[0]) is not None:
            return False
        source = node.args[0]
        assert isinstance(source, Node)
        effect = self._graph.effects.of(source)
        return not self._may_keep(source) and not effect.shares

    def _memory_of_attribute(self, node: Node) -> Hashable:
        """Attributes under several names may be one tensor, or share its memory."""
        value = attribute_or_none(self._graph.module, str(node.target))
        is_stored = isinstance(value, torch.Tensor) and may_be_tensor(node) and value.layout is torch.strided
        return ("storage", value.untyped_storage()._cdata) if is_stored else ("name", str(node.target))
