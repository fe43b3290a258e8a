"""Outputs that are views: a small graph outside of the compiled code regenerates them from their bases.

The caller gets real views of its inputs and of other outputs, with the history that autograd gives to views, as in
eager.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from eductor.errors import Unsupported
from eductor.graph import effect_of, tensor_of, value_of
from eductor.graph.effects.bases import storage_node
from eductor.program.joint import Place, Views


@dataclass(frozen=True, slots=True)
class Wanted:
    """A view to regenerate: its node in the traced graph, its base, and its state in autograd."""

    node: Node
    root: Place
    recorded: bool
    detached: bool
    """Gradients flow to its base, and not to it; decompositions may have dropped the detach."""


def views_of(wanted: Sequence[Wanted], leaves: Mapping[Node, Place]) -> Views:
    """The part of a traced graph from its leaves to the views, as a separate graph."""
    builder = _Builder(leaves)
    results = [builder.view(w) for w in wanted]
    builder.graph.output(tuple(results))
    module = GraphModule(torch.nn.Module(), builder.graph)
    return Views(tuple(p.meta["place"] for p in builder.graph.find_nodes(op="placeholder")), module)


class _Builder:
    """Copies chains of views, and the sizes they read, into a new graph."""

    def __init__(self, leaves: Mapping[Node, Place]) -> None:
        self.graph = Graph()
        self._leaves = leaves
        self._found: dict[Place, Node] = {}
        self._without_gradient: dict[Place, Node] = {}
        self._copies: dict[tuple[Node, bool], Node | None] = {}
        self._detached = False

    def view(self, wanted: Wanted) -> Node:
        self._detached = wanted.detached
        copy = self._copy(wanted.node)
        if copy is not None:
            if copy.op == "placeholder":
                copy = self.graph.call_function(torch.ops.aten.alias.default, (copy,))
            return copy
        value = tensor_of(wanted.node)
        if value is None or not all(type(x) is int for x in (*value.shape, *value.stride(), value.storage_offset())):
            raise Unsupported(f"an output that shares memory in a way that cannot be repeated ({wanted.node.name})")
        geometry = (list(value.shape), list(value.stride()), value.storage_offset())
        return self.graph.call_function(torch.ops.aten.as_strided.default, (self._leaf(wanted.root), *geometry))

    def _copy(self, node: Node) -> Node | None:
        """The copy of a node, or None where it is computed and not a view."""
        key = storage_node(node), self._detached
        if key not in self._copies:
            self._copies[key] = self._new(key[0])
        return self._copies[key]

    def _new(self, node: Node) -> Node | None:
        if node in self._leaves:
            place = self._leaves[node]
            return self._leaf(place) if tensor_of(node) is not None else self._given(place)
        is_size = isinstance(value_of(node), (int, torch.SymInt)) and node.op == "call_function"
        if not (effect_of(node).is_view or is_size or node.target is operator.getitem):
            return None
        operands = {operand: self._copy(operand) for operand in node.all_input_nodes}
        if any(copy is None for copy in operands.values()):
            return None
        return self.graph.node_copy(node, lambda operand: operands[operand])

    def _leaf(self, place: Place) -> Node:
        """An input or a return, detached where the view must be."""
        given = self._given(place)
        if not self._detached:
            return given
        if place not in self._without_gradient:
            self._without_gradient[place] = self.graph.call_function(torch.ops.aten.detach.default, (given,))
        return self._without_gradient[place]

    def _given(self, place: Place) -> Node:
        if place not in self._found:
            first = next(iter(self.graph.nodes), None)
            with self.graph.inserting_before(first):
                self._found[place] = self.graph.placeholder(f"{place[0]}_{place[1]}")
            self._found[place].meta["place"] = place
        return self._found[place]
