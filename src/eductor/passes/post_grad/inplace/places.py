"""Alias sets of the values of a graph whose inputs do not overlap.

This holds for the graphs of a compile: inputs that overlap with a written one were merged. `Effects` assumes less,
because it also serves earlier stages.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import GraphView, difference, tensor_of, value_of
from eductor.graph.effects.effect import may_be_tensor, tensors_among
from eductor.graph.snapshot import attribute_or_none

Use = tuple[Node, Node]
"""A value and one of its users."""


@dataclass(eq=False)
class _Place:
    """An alias set: values that may share memory, with their uses and holders."""

    nodes: list[Node]
    uses: list[Use]
    holders: list[Node]
    is_written: bool = False


class Places:
    """Alias sets: values that may share memory are in one place; each is a view of a root, as far as that is certain.

    Queries come in the order of the graph, so earlier uses are dropped, and a long chain of writes to one place costs
    no more than as many writes to several.
    """

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self._place: dict[Node, _Place] = {}
        self._homes: dict[Hashable, Node] = {}
        for node in graph.nodes:
            self.enter(node)

    def enter(self, node: Node) -> None:
        """Adds a node."""
        is_held = node.op in ("placeholder", "get_attr") or self._may_keep(node)
        self._place[node] = _Place([node], [(node, user) for user in node.users], [node] if is_held else [])
        if self._may_keep(node):
            for operand in tensors_among(node.all_input_nodes):
                self.join(node, operand)
        elif self._is_picked(node):
            # The results of one call do not overlap, unless they are views; each may be picked more than once.
            self.join(node, self._homes.setdefault((node.args[0], node.args[1]), node))
        else:
            for operand in self._graph.effects.of(node).shares:
                self.join(node, operand)
        if node.op == "get_attr":
            self.join(node, self._homes.setdefault(self._memory_of_attribute(node), node))

    def __contains__(self, node: Node) -> bool:
        return node in self._place

    def join(self, a: Node, b: Node) -> None:
        """Record that two values may share memory."""
        small, large = sorted((self._place[a], self._place[b]), key=lambda place: len(place.nodes))
        if small is large:
            return
        large.nodes += small.nodes
        large.uses += small.uses
        large.holders += small.holders
        large.is_written |= small.is_written
        for node in small.nodes:
            self._place[node] = large

    def replace_result(self, operand: Node, result: Node) -> None:
        """Record that an operand is about to replace a result."""
        self.join(result, operand)
        place = self._place[operand]
        place.uses = [(operand if node is result else node, user) for node, user in place.uses]

    def uses_after(self, node: Node, call: Node) -> list[Use]:
        """The uses after a call of all values that may share memory with a node; earlier uses are dropped."""
        place = self._place[node]
        place.uses = [use for use in place.uses if call < use[1]]
        return place.uses

    def share(self, a: Node, b: Node) -> bool:
        return self._place[a] is self._place[b]

    def held_outside(self, node: Node) -> list[Node]:
        """The inputs, attributes and opaque calls through which the memory of a value escapes the graph."""
        return self._place[node].holders

    def root(self, node: Node) -> tuple[Any, ...]:
        """The value that a view is based on, as far as that is certain; with the index of one of several results."""
        *_, last = self.views(node)
        if self._is_picked(last):
            return (last.args[0], last.args[1])
        return (last,)

    def views(self, node: Node) -> list[Node]:
        """A value, its base, and so on up to a value that is no view."""
        found = [node]
        while not self._is_picked(node) and (effect := self._graph.effects.of(node)).is_view and effect.shares:
            node = effect.shares[0]
            found.append(node)
        return found

    def same(self, a: Node, b: Node) -> bool:
        """Whether two values are provably the same view of the same memory."""
        return self.root(a) == self.root(b) and difference(value_of(a), value_of(b)) is None

    def mark_written(self, node: Node) -> None:
        """Record that the memory of a value is written in place."""
        self._place[node].is_written = True

    def is_written(self, node: Node) -> bool:
        return self._place[node].is_written

    def _may_keep(self, node: Node) -> bool:
        """Whether a callee may keep references to its operands; a kernel only writes them."""
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
        """The storage of an attribute, since several names may share one; without a storage, its name."""
        value = attribute_or_none(self._graph.module, str(node.target))
        is_stored = isinstance(value, torch.Tensor) and may_be_tensor(node) and value.layout is torch.strided
        return ("storage", value.untyped_storage()._cdata) if is_stored else ("name", str(node.target))
