"""Sizes as arguments of new nodes: numbers if they are known, nodes that compute them if they are symbolic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from eductor.compat import size_as_node, symbols_of
from eductor.errors import BadGraph
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import value_of

aten = torch.ops.aten


def as_arguments(rewrite: Rewriter, sizes: Iterable[Any], before: Node) -> list[Any]:
    """Each size as a number, or as a node inserted before another one."""
    return [_as_argument(rewrite, size, before) if isinstance(size, torch.SymInt) else size for size in sizes]


def _as_argument(rewrite: Rewriter, size: torch.SymInt, before: Node) -> Any:
    known = {symbol: _source(rewrite, symbol, before) for symbol in symbols_of(size)}
    last, graph = before.prev, rewrite.view.graph
    with graph.inserting_before(before):
        result = size_as_node(graph, size, known)
    while (last := last.next) is not before:
        rewrite.adopt(last, like=before)
    return result


def _source(rewrite: Rewriter, symbol: Any, before: Node) -> Node:
    """A node whose value is the symbol: an input, or the size of an operand of the graph."""
    for node in _earlier(rewrite.view.graph, before):
        value = value_of(node)
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            return node
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                return rewrite.insert(aten.sym_size.int, node, dim, before=before)
    raise BadGraph(f"no node before {before.name} has the size {symbol}")


def _earlier(graph: Graph, before: Node) -> Iterable[Node]:
    return (node for node in graph.nodes if node < before)
