"""Which values of a graph share memory, in a graph whose inputs lie apart.

What a compile hands to the post-grad stage is so: inputs that overlap with a written one were taken as one. `Effects`
assumes less, because it serves stages where nobody has looked.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import Node

from eductor.graph.meta import difference, tensor_of, value_of
from eductor.graph.node_effects import may_be_tensor, tensors_among
from eductor.graph.snapshot import attribute
from eductor.graph.view import GraphView


class Places:
    """Values that may share memory are in one place; each is a view of a root, as far as that is certain."""

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self._place: dict[Node, list[Node]] = {}
        self._homes: dict[Hashable, Node] = {}
        self._written: set[Node] = set()
        for node in graph.nodes:
            self.enter(node)

    def enter(self, node: Node) -> None:
        """Takes a node in."""
        self._place[node] = [node]
        effect = self._graph.effects.of(node)
        if self._may_keep(node):
            for operand in tensors_among(node.all_input_nodes):
                self.join(node, operand)
        elif self._is_picked(node):
            # The results of one call lie apart, unless they are views; each may be picked more than once.
            self.join(node, self._homes.setdefault((node.args[0], node.args[1]), node))
        else:
            for operand in effect.shares:
                self.join(node, operand)
        if node.op == "get_attr":
            self.join(node, self._homes.setdefault(self._memory_of_attribute(node), node))

    def __contains__(self, node: Node) -> bool:
        return node in self._place

    def join(self, a: Node, b: Node) -> None:
        """From now on two values may share memory."""
        small, large = sorted((self._place[a], self._place[b]), key=len)
        if small is large:
            return
        large += small
        for node in small:
            self._place[node] = large

    def sharing(self, node: Node) -> list[Node]:
        """The values that may share memory with a node's, itself among them, as far as they are still in the graph."""
        return [n for n in self._place[node] if n.op in ("placeholder", "get_attr") or n in self._graph]

    def share(self, a: Node, b: Node) -> bool:
        return self._place[a] is self._place[b]

    def held_outside(self, node: Node) -> list[Node]:
        """Through what somebody outside of the graph, or a callee that nobody knows, holds the memory of a value."""
        return [n for n in self.sharing(node) if n.op in ("placeholder", "get_attr") or self._may_keep(n)]

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
        self._written.add(node)

    def is_written(self, node: Node) -> bool:
        return not self._written.isdisjoint(self._place[node])

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
        value = attribute(self._graph.module, str(node.target))
        is_stored = isinstance(value, torch.Tensor) and may_be_tensor(node) and value.layout is torch.strided
        return ("storage", value.untyped_storage()._cdata) if is_stored else ("name", str(node.target))
