"""A constant tensor with one other value a row: a comparison with the index, which fuses, in place of a scatter."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import is_row_major, known_equal, tensor_of, value_of
from eductor.graph.view import GraphView

aten = torch.ops.aten
prims = torch.ops.prims

CONSTANTS = {aten.full: None, aten.zeros: 0, aten.ones: 1, aten.new_zeros: 0, aten.new_ones: 1, aten.new_full: None}
"""Operators that make a uniform tensor of a given size, and of which number, if that is no argument of theirs."""


def scatter_upon_const_tensor(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """`scatter(full(shape, b), dim, index, v)` with one index a row is `where(index == arange, v, b)`.

    The index is read through `gather`, so that one out of range is an error as before.
    """
    bound = graph.bind(node)
    constant = graph.bind(bound["self"]) if isinstance(bound, Bound) and isinstance(bound["self"], Node) else None
    if not isinstance(bound, Bound) or not isinstance(constant, Bound) or constant.packet not in CONSTANTS:
        return
    reason = _why_not(node, bound)
    if reason:
        rewrite.reject(reason, node)
    else:
        _compare(rewrite, node, bound, constant)


def _compare(rewrite: Rewriter, node: Node, bound: Bound, constant: Bound) -> None:
    def insert(op: Any, *args: Any, **kwargs: Any) -> Node:
        return rewrite.insert(op, *args, before=node, **kwargs)

    result, index, sizes = value_of(node), bound["index"], constant["size"]
    device, dim = result.device, bound["dim"] % result.dim()
    whole = {"start": 0, "step": 1, "dtype": value_of(index).dtype, "device": device, "requires_grad": False}
    numbers = insert(prims.iota, sizes[dim], **whole)
    along = insert(aten.view, numbers, [sizes[dim] if d == dim else 1 for d in range(result.dim())])
    checked = insert(aten.gather, insert(aten.expand, along, sizes), dim, index)
    is_here = insert(aten.eq, checked, along)
    background = constant.get("fill_value", CONSTANTS[constant.packet])
    here, elsewhere = (
        insert(aten.full, [], number, dtype=result.dtype, device=device) for number in (bound["value"], background)
    )
    rewrite.replace(node, aten.where, is_here, here, elsewhere)


def _why_not(node: Node, bound: Bound) -> str:
    result, index = tensor_of(node), tensor_of(bound["index"])
    if result is None or index is None or index.dim() != result.dim() or result.dim() == 0:
        return "the index has another number of dimensions"
    dim = bound["dim"] % result.dim()
    if not known_equal(index.shape[dim], 1):
        return f"dimension {dim} has several indices"
    others = [d for d in range(result.dim()) if d != dim]
    if not known_equal([index.shape[d] for d in others], [result.shape[d] for d in others]):
        return "not every row has an index"
    if isinstance(value_of(bound["value"]), (torch.SymInt, torch.SymFloat)):
        return "the value is not a number"
    if not is_row_major(result) or not is_row_major(index):
        return "the result or the index does not lie in memory row by row"
    return ""
