"""Splits a joint graph, given the saved values: the backward recomputes the rest, right before it is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch.fx import Graph, GraphModule, Node

from eductor import compat
from eductor.graph import value_of
from eductor.graph.effects.order import ancestors
from eductor.graph.values.meta import AHEAD, CAME_FROM, IN_BACKWARD
from eductor.partition.node_info import backward_order, classify, is_size, made_ahead
from eductor.partition.saves import Saves
from eductor.program.joint import Joint
from eductor.program.parts import Parts, Saved

aten = torch.ops.aten


def split(joint: Joint, saves: Saves, *, edited: bool = False) -> Parts:
    """The forward graph that returns the saved values too, and the backward graph that takes them.

    The backward computes the values `ahead` at its start, and recomputes their operands where it reads them. If the
    graph was `edited` since the choice, a node may take the place of a value in the backward.
    """
    splitter = _Split(joint, saves, edited=edited)
    return splitter.parts() if joint.tangents else Parts(splitter.forward_graph([]), None)


class _Split:
    """One joint graph, to be copied into two."""

    def __init__(self, joint: Joint, saves: Saves, *, edited: bool) -> None:
        self._root = joint.module
        self._info = info = classify(joint) if edited else saves.info
        self._primals = {n: i for i, n in enumerate(info.primals)}
        nodes = {n.name: n for n in info.nodes}
        self._copied = {nodes[name] for name in saves.copied}
        self._trusts = saves.trusts_parameters
        nodes |= {n.meta[IN_BACKWARD]: n for n in info.nodes if IN_BACKWARD in n.meta}
        self._saved, self._ahead = [nodes[name] for name in saves.forms], [nodes[name] for name in saves.ahead]

    def parts(self) -> Parts:
        sizes = [n for n in self._saved if is_size(n)]
        tensors = [n for n in self._saved if not is_size(n)]
        sizes = [*self._unbound(sizes, (*tensors, *self._info.tangents)), *sizes]
        forward, places = self._forward_with([*sizes, *tensors])
        backward = self._backward_graph([*sizes, *tensors])
        destinations = tuple(self._primals[n] for n in self._info.destinations)
        return Parts(
            forward, backward, tuple(places[: len(sizes)]), tuple(places[len(sizes) :]), destinations, self._trusts
        )

    def _unbound(self, sizes: Sequence[Node], tensors: Iterable[Node]) -> list[Node]:
        """The symbolic sizes in the shapes of the backward's inputs that no saved size defines."""
        nodes, late = self._info.nodes, self._info.late
        known = {compat.symbol_of(value_of(n)) for n in sizes}
        homes = {compat.symbol_of(value_of(n)): n for n in reversed(nodes) if is_size(n) and n not in late}
        missing = []
        for node in (*sizes, *tensors):
            for symbol in compat.symbols_of(value_of(node)):
                if symbol not in known and symbol in homes:
                    known.add(symbol)
                    missing.append(homes[symbol])
        return missing

    def _forward_with(self, saved: Sequence[Node]) -> tuple[GraphModule, list[Saved]]:
        """The forward graph that returns these values too, and where each of them is found."""
        returns = self._info.returns
        returned = {n: k for k, n in reversed(list(enumerate(returns))) if isinstance(n, Node)}
        places: list[Saved] = []
        extra: list[Node] = []
        for node in saved:
            if node in self._primals and node not in self._copied:
                places.append(Saved("input", self._primals[node]))
            elif node in returned and node not in self._copied:
                places.append(Saved("output", returned[node]))
            else:
                places.append(Saved("output", len(returns) + len(extra)))
                extra.append(node)
        return self.forward_graph(extra), places

    def forward_graph(self, extra: Sequence[Node]) -> GraphModule:
        """The forward with more outputs; what may be written before the backward is returned as a copy."""
        graph, copies = Graph(), dict[Node, Node]()
        info = self._info
        wanted = ancestors((*info.returns, *info.forward_acts, *extra))
        for node in info.nodes:
            if node in wanted or node in self._primals:
                copies[node] = _copy(graph, node, copies)
        outputs = [copies[n] if isinstance(n, Node) else n for n in info.returns]
        first_write = next((n for n in graph.nodes if n.target is aten.copy_.default), None)
        for node in extra:
            with graph.inserting_before(first_write) if first_write is not None else nullcontext():
                outputs.append(self._handed_over(graph, node, copies[node]))
        graph.output(tuple(outputs))
        return compat.lazy_module(self._root, graph)

    def _handed_over(self, graph: Graph, node: Node, value: Node) -> Node:
        """What the forward returns of a value that is saved: the value, or a copy of it."""
        if node not in self._copied:
            return value
        copy = graph.call_function(aten.clone.default, (value,))
        copy.meta = {**node.meta, CAME_FROM: (node.name,)}
        return copy

    def _backward_graph(self, saved: Sequence[Node]) -> GraphModule:
        graph, copies = Graph(), dict[Node, Node]()
        places: dict[Node, Node] = {}
        info = self._info
        for known, nodes in ((copies, saved), (places, info.destinations), (copies, info.tangents)):
            for node in nodes:
                name = node.name if known is copies else f"{node.name}_written"
                known[node] = graph.placeholder(name)
                known[node].meta = {**node.meta, CAME_FROM: (node.name,)}
        first = made_ahead(info, saved, self._ahead)
        for i, node in enumerate((*first, *backward_order(info, [*saved, *self._ahead]))):
            sources = {**copies, **places} if node.target is aten.copy_.default else copies
            copies[node] = _copy(graph, node, sources)
            if i < len(first):
                copies[node].meta[AHEAD] = True
        graph.output(tuple(copies[n] for n in info.gradients))
        return compat.lazy_module(self._root, graph)


def _copy(graph: Graph, node: Node, copies: Mapping[Node, Node]) -> Node:
    """The same node in another graph; it knows which one it came from."""
    copy = graph.node_copy(node, lambda n: copies[n])
    copy.meta[CAME_FROM] = (node.name,)
    return copy
