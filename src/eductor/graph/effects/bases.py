"""The base of a view, found in the graph."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from eductor.compat import OpOverload, changes_geometry
from eductor.graph.effects.node_effects import effect_of

_UNDECLARED_VIEWS = frozenset(
    {
        torch.ops.aten._unsafe_view.default,
        torch.ops.aten.unsafe_chunk.default,
        torch.ops.aten.unsafe_split.Tensor,
        torch.ops.aten.unsafe_split_with_sizes.default,
    }
)
"""Their results alias their operand, which their schemas do not declare."""


def base_node(node: Node) -> Node:
    """The base of a value, through any number of views and the parts of those with several results."""
    while True:
        source = node.all_input_nodes[0] if node.target is operator.getitem else node
        if not (effect_of(source).shares or source.target in _UNDECLARED_VIEWS):
            return node
        node = source.all_input_nodes[0]


def is_view(node: Node) -> bool:
    """Whether a value shares memory with an operand of the call that makes it."""
    return base_node(node) is not node


def storage_node(node: Node) -> Node:
    """The node whose tensor a node returns: in-place operators return the operand that they wrote."""
    while isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
        schema = node.target._schema
        returned = schema.returns[0].alias_info if len(schema.returns) == 1 else None
        if returned is None or not returned.is_write or changes_geometry(node.target):
            return node
        written = next(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
        operand = node.args[written] if written < len(node.args) else node.kwargs[schema.arguments[written].name]
        if not isinstance(operand, Node):
            return node
        node = operand
    return node


def origin_of(node: Node) -> Node:
    """The value from which a value can be recomputed by views alone; itself, if it is not a view."""
    while True:
        node = storage_node(node)
        call = node.all_input_nodes[0] if node.target is operator.getitem else node
        if not effect_of(call).is_view:
            return node
        node = call.all_input_nodes[0]
