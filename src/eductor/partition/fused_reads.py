"""What a fused kernel reads from memory to compute a value inline."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from eductor.cost import bytes_of, fuses
from eductor.partition.node_info import NodeInfo

_MOST = 4
"""The most reads of an inlined value: with more, an engine materializes it."""


class Reads:
    """For each value that fuses into its reader, the materialized values that are read for it."""

    def __init__(self, info: NodeInfo) -> None:
        self._info = info
        self._known: dict[Node, frozenset[Node]] = {}
        for node in info.nodes:  # operands come first
            self._known[node] = self._of(node)

    def more(self, node: Node) -> int:
        """The bytes read for a value beyond those read for its largest operand."""
        each = [_bytes(self._known[operand]) for operand in node.all_input_nodes]
        return _bytes(self._of_operands(node)) - max(each, default=0)

    def _of(self, node: Node) -> frozenset[Node]:
        if node in self._info.views:
            return self._known[node.all_input_nodes[0]]
        if not fuses(node):
            return frozenset({node})
        read = self._of_operands(node)
        return read if len(read) <= _MOST else frozenset({node})

    def _of_operands(self, node: Node) -> frozenset[Node]:
        return frozenset[Node]().union(*(self._known[operand] for operand in node.all_input_nodes))


def _bytes(nodes: Iterable[Node]) -> int:
    return sum(map(bytes_of, nodes))
