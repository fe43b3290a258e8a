"""Snapshots of a graph: to detect changes, to print it as it was, and to restore it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.graph import CodeGen
from torch.nn import Module

from eductor.compat import calls_of, codegen_of, lazy_module


def copy_of(graph: Graph) -> Graph:
    """A copy of a graph: the same nodes, names, metadata and order, sorted or not.

    Its inputs and outputs are flat, even where Dynamo nested those of the original.
    """
    copy = Snapshot(graph).graph()
    copy.set_codegen(CodeGen())
    return copy


def own_module(module: GraphModule) -> GraphModule:
    """A copy of a module that shares no graph with it, nor the bodies of its higher-order operators."""
    copy = Snapshot(module.graph).module(module)
    copy.graph.set_codegen(CodeGen())
    return copy


class Snapshot:
    """The nodes of a graph with their targets and arguments at one moment.

    Taking one and comparing it are linear and cheap (arguments are compared by identity), so the pipeline holds
    one before every pass, and a pass that raises halfway can be undone without a copy of the graph made in advance.
    Its columns are flat lists: one object per node would trigger the garbage collector on a large graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._nodes = list(graph.nodes)
        self._calls = list(calls_of(self._nodes))
        metas = [node.meta for node in self._nodes]
        self._meta_sizes = list(map(len, metas))
        self._meta_items: list[Any] = []
        for meta in metas:
            self._meta_items += meta
            self._meta_items += meta.values()
        self._codegen = codegen_of(graph)
        self._nested = {path: Snapshot(module.graph) for path, module in subgraphs(graph).items()}

    def __len__(self) -> int:
        return len(self._nodes)

    def growth(self, graph: Graph) -> int:
        """How many nodes a graph gained since, including those in bodies that it had then."""
        nested = sum(then.growth(body.graph) for _, then, body in self.bodies(graph))
        return len(graph.nodes) - len(self) + nested

    def bodies(self, graph: Graph) -> Iterator[tuple[str, Snapshot, GraphModule]]:
        """The bodies of higher-order operators that a graph had then and still has: path, snapshot, present module."""
        now = subgraphs(graph) if self._nested else {}
        return ((path, then, now[path]) for path, then in self._nested.items() if path in now)

    def bodies_gone(self, graph: Graph) -> list[str]:
        """The paths of bodies that a graph lost since."""
        now = subgraphs(graph) if self._nested else {}
        return [path for path in self._nested if path not in now]

    def module(self, root: GraphModule) -> GraphModule:
        """A new module with the graph and bodies of the snapshot; everything else is taken from the root."""
        module = lazy_module(root, self.graph())
        for path, then in self._nested.items():
            body, (parent, _, name) = attribute_or_none(root, path), path.rpartition(".")
            if isinstance(body, GraphModule):
                setattr(module.get_submodule(parent), name, then.module(body))
        return module

    def is_same(self, graph: Graph) -> bool:
        """Whether nothing was added, removed, moved or rewired since, in the graph and in its subgraphs."""
        # By identity: for `==`, 2 is 2.0 and True is 1.
        same = len(self._nodes) == len(graph.nodes) and all(map(operator.is_, self._nodes, graph.nodes))
        return same and all(map(operator.is_, self._calls, calls_of(graph.nodes))) and self.has_same_subgraphs(graph)

    def has_same_subgraphs(self, graph: Graph) -> bool:
        """Whether the bodies of higher-order operators are unchanged."""
        same = [then.is_same(body.graph) for _, then, body in self.bodies(graph)]
        return len(same) == len(self._nested) and all(same)

    def changed_nodes(self, graph: Graph) -> list[Node]:
        """The nodes that are new, or whose target or arguments changed since."""
        then = dict(zip(self._nodes, _by_four(self._calls), strict=True))
        now = zip(graph.nodes, _by_four(calls_of(graph.nodes)), strict=True)
        return [node for node, call in now if node not in then or not all(map(operator.is_, then[node], call))]

    def rows(self) -> Iterator[tuple[Node, Any, Any, Any, Any]]:
        """The nodes at the snapshot, each with its kind, target, positional and keyword arguments."""
        for node, call in zip(self._nodes, _by_four(self._calls), strict=True):
            yield node, *call

    def metas(self) -> Iterator[dict[str, Any]]:
        """The metadata of each node at the snapshot."""
        at = 0
        for size in self._meta_sizes:
            yield dict(zip(self._meta_items[at : at + size], self._meta_items[at + size : at + 2 * size], strict=True))
            at += 2 * size

    def graph(self) -> Graph:
        """The graph at the snapshot, recreated with new nodes under the old names."""
        graph = Graph()
        graph.set_codegen(self._codegen)
        new: dict[Node, Node] = {}
        for (node, op, target, _, _), meta in zip(self.rows(), self.metas(), strict=True):
            new[node] = graph.create_node(op, target, (), {}, node.name, node.type)
            new[node].meta = meta
        for i, node in enumerate(self._nodes):
            args, kwargs = self._calls[4 * i + 2 : 4 * i + 4]
            new[node].args, new[node].kwargs = map_arg((args, kwargs), new.__getitem__)
        return graph

    def restore(self, module: GraphModule) -> None:
        """Restores the graph of a module and its subgraphs to the snapshot."""
        for path, then in self._nested.items():  # of which some may have left the graph
            body = attribute_or_none(module, path)
            if isinstance(body, GraphModule) and not then.is_same(body.graph):
                then.restore(body)
        module.graph = self.graph()


def subgraphs(graph: Graph) -> dict[str, GraphModule]:
    """The graph modules that a graph reads from its module: bodies of higher-order operators, by path.

    One that several operators share is listed once.
    """
    owner = graph.owning_module
    if owner is None:
        return {}
    paths = dict.fromkeys(str(node.target) for node in graph.find_nodes(op="get_attr"))
    found: dict[Any, str] = {}
    for path in paths:
        module: Any = owner
        for name in path.split("."):
            module = module._modules.get(name) if isinstance(module, Module) else None
        if isinstance(module, GraphModule):
            found.setdefault(module, path)
    return {path: module for module, path in found.items()}


def attribute_or_none(owner: Any, path: str) -> Any:
    """The attribute at a dotted path, or None."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def _by_four(calls: Iterable[Any]) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Groups flat entries by node: kind, target, positional and keyword arguments."""
    each = iter(calls)
    return zip(each, each, each, each, strict=True)
