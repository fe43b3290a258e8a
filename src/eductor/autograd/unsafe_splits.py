"""Refuses writes through splits whose schemas do not declare that their results alias the operand."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from eductor.autograd.functionalize import written_by
from eductor.errors import Unsupported
from eductor.graph import effect_of, is_row_major, value_of
from eductor.graph.effects.bases import storage_node

_SPLITS = (torch.ops.aten.unsafe_split.Tensor, torch.ops.aten.unsafe_split_with_sizes.default)


def refuse_seen_sharing(module: GraphModule) -> None:
    """Raises where either the operand or the parts of such a split are written, and the others are read afterwards."""
    for split in (node for target in _SPLITS for node in module.graph.find_nodes(op="call_function", target=target)):
        sides = {_memory(split.all_input_nodes[0]), split}
        stale: set[Node] = set()
        node = split.next
        while node.op != "root":
            if stale & {_memory(operand) for operand in node.all_input_nodes}:
                raise Unsupported(f"{split.target} whose operand or parts are written while the others are in use")
            for written in sides & {_memory(x) for x in pytree.tree_leaves(written_by(node)) if isinstance(x, Node)}:
                stale |= sides - {written}
            node = node.next
        if any(side.op == "placeholder" for side in stale):
            raise Unsupported(f"{split.target} of an input, whose parts are written")


def refuse_unknown_layouts(module: GraphModule) -> None:
    """Raises where a written part of such a split has gaps of symbolic size, which no new value can have."""
    for node in module.graph.nodes:
        for part in (x for x in pytree.tree_leaves(written_by(node)) if isinstance(x, Node)):
            split, value = _memory(part), value_of(part)
            if split.target not in _SPLITS or is_row_major(value):
                continue
            if not all(type(stride) is int for stride in value.stride()):
                where = "with sizes that may change, whose parts are written, in the profile 'exact'"
                raise Unsupported(f"{split.target} {where}: they would round differently")


def _memory(node: Node) -> Node:
    """The node whose memory a value has; parts of an undeclared split count as memory of the split."""
    while True:
        node = storage_node(node)
        call = node.all_input_nodes[0] if node.target is operator.getitem else node
        if call.target in _SPLITS or not effect_of(call).shares:
            return call if call.target in _SPLITS else node
        node = call.all_input_nodes[0]
