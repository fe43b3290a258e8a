"""A graph as it was: enough to see whether it changed, to print it, and to bring it back."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, GraphModule, Node, map_arg


class Snapshot:
    """The nodes of a graph with their targets and arguments at one moment.

    Taking one and comparing it are linear and cheap (tuples are compared by identity first), so the pipeline holds
    one before every pass, and a pass that raises halfway can be undone without a copy of the graph made in advance.
    """

    def __init__(self, graph: Graph) -> None:
        self._rows = _rows(graph)
        self._metas = [dict(node.meta) for node in graph.nodes]
        self._codegen = graph._codegen

    def __len__(self) -> int:
        return len(self._rows)

    def is_same(self, graph: Graph) -> bool:
        """Whether nothing was added, removed, moved or rewired since."""
        return self._rows == _rows(graph)

    def changed_nodes(self, graph: Graph) -> list[Node]:
        """The nodes that are new or call something else, or with other arguments, than then."""
        old = {row[0]: row for row in self._rows}
        return [row[0] for row in _rows(graph) if old.get(row[0]) != row]

    def graph(self) -> Graph:
        """The graph as it was, made of new nodes under the old names."""
        graph = Graph()
        graph.set_codegen(self._codegen)
        new: dict[Node, Node] = {}
        for (node, op, target, _, _), meta in zip(self._rows, self._metas, strict=True):
            new[node] = graph.create_node(op, target, (), {}, node.name, node.type)
            new[node].meta = dict(meta)
        for node, _, _, args, kwargs in self._rows:
            new[node].args, new[node].kwargs = map_arg((args, kwargs), new.__getitem__)
        return graph

    def restore(self, module: GraphModule) -> None:
        """Brings the graph of a module back to what it was."""
        module.graph = self.graph()


def _rows(graph: Graph) -> list[tuple[Node, str, Any, tuple[Any, ...], dict[str, Any]]]:
    return [(n, n.op, n.target, n.args, n.kwargs) for n in graph.nodes]
