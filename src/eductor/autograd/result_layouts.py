"""Keeps eager's strides of results where functionalization or a decomposition changes them.

A write in place keeps the layout of its operand, and the operator that replaces it may have a contiguous result; so may a
decomposition. Results get their layout back by a copy, which a generated kernel writes at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from eductor.graph.values.evaluate import update
from eductor.graph.values.meta import hint_of, known_equal, output_of, row_major_strides, tensor_of

aten = torch.ops.aten


def strides_of_results(module: GraphModule) -> list[tuple[Any, ...] | None]:
    """The strides of each result of a traced graph; None for a result without strides."""
    values = [tensor_of(x) if isinstance(x, Node) else None for x in pytree.tree_leaves(output_of(module))]
    return [None if value is None or value.layout is not torch.strided else tuple(value.stride()) for value in values]


def keep_strides(module: GraphModule, expected: Sequence[tuple[Any, ...] | None]) -> None:
    """Lays out the results whose strides are others than expected, if the expected ones leave no gaps."""
    results = pytree.tree_leaves(output_of(module))
    copies: dict[Node, list[Node]] = {}
    for node, strides in zip(results, expected, strict=True):
        value = tensor_of(node) if isinstance(node, Node) and node.op == "call_function" else None
        if value is None or strides is None or node in copies or _have_strides(value, strides):
            continue
        order = _order(value, strides)
        if order is not None:
            copies[node] = _laid_out(module, node, order)
    update(module, [made for nodes in copies.values() for made in nodes])
    output = module.graph.output_node()
    output.args = map_arg(output.args, lambda node: copies[node][-1] if node in copies else node)


def _have_strides(value: torch.Tensor, strides: Sequence[Any]) -> bool:
    """Whether a value has these strides in all dimensions of more than one element."""
    found = zip(value.shape, value.stride(), strides, strict=True)
    return known_equal(value.numel(), 0) or all(known_equal(n, 1) or known_equal(a, b) for n, a, b in found)


def _order(value: torch.Tensor, strides: Sequence[Any]) -> list[int] | None:
    """The dimensions of a value from the largest of these strides to the smallest; None if they are unknown or leave gaps."""
    hints = [(hint_of(stride), hint_of(size)) for stride, size in zip(strides, value.shape, strict=True)]
    if any(None in pair for pair in hints):
        return None
    order = sorted(range(value.dim()), key=hints.__getitem__, reverse=True)
    found = zip(order, row_major_strides([value.shape[dim] for dim in order]), strict=True)
    is_packed = all(known_equal(value.shape[dim], 1) or known_equal(strides[dim], stride) for dim, stride in found)
    return order if is_packed else None


def _laid_out(module: GraphModule, node: Node, order: Sequence[int]) -> list[Node]:
    """The calls, after a node, that copy its value so that its dimensions are in memory in this order."""
    inverse = [order.index(dim) for dim in range(len(order))]
    turned = _after(module, node, aten.permute.default, list(order))
    packed = _after(module, turned, aten.clone.default, memory_format=torch.contiguous_format)
    return [turned, packed, _after(module, packed, aten.permute.default, inverse)]


def _after(module: GraphModule, node: Node, op: Any, *args: Any, **kwargs: Any) -> Node:
    """A call on a value directly after its node, with the metadata of that node."""
    with module.graph.inserting_after(node):
        made = module.graph.call_function(op, (node, *args), kwargs)
    made.meta = {key: x for key, x in node.meta.items() if key != "val"}
    return made
