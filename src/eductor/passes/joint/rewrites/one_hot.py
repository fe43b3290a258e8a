"""Scatters of one value per row into a constant: a comparison with the index, which fuses, replaces the scatter."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_equal, value_of
from eductor.patterns import ANY, Match, const, op, var

aten = torch.ops.aten
prims = torch.ops.prims

CONSTANTS = {aten.full: None, aten.zeros: 0, aten.ones: 1, aten.new_zeros: 0, aten.new_ones: 1, aten.new_full: None}
"""Operators that make a uniform tensor of a given size, and of which number, if that is no argument of theirs."""


_CONSTANT = op(list(CONSTANTS), ..., users=ANY)
ONE_HOT = op(aten.scatter.value, _CONSTANT, const("dim"), var("index"), const("value"))


def scatter_upon_const_tensor(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    """`scatter(full(shape, b), dim, index, v)` with one index a row is `where(index == arange, v, b)`.

    The index is read through `gather`, so that one out of range is an error as before.
    """
    constant = graph.bind(match.node_of(_CONSTANT))
    assert isinstance(constant, Bound)
    _compare(rewrite, match, constant)


def _compare(rewrite: Rewriter, match: Match, constant: Bound) -> None:
    node = match.output

    def insert(op: Any, *args: Any, **kwargs: Any) -> Node:
        return rewrite.insert(op, *args, before=node, **kwargs)

    result, index, sizes = value_of(node), match["index"], constant["size"]
    device, dim = result.device, match["dim"] % result.dim()
    whole = {"start": 0, "step": 1, "dtype": value_of(index).dtype, "device": device, "requires_grad": False}
    numbers = insert(prims.iota, sizes[dim], **whole)
    along = insert(aten.view, numbers, [sizes[dim] if d == dim else 1 for d in range(result.dim())])
    checked = insert(aten.gather, insert(aten.expand, along, sizes), dim, index)
    is_here = insert(aten.eq, checked, along)
    background = constant.get("fill_value", CONSTANTS[constant.packet])
    here, elsewhere = (
        insert(aten.full, [], number, dtype=result.dtype, device=device) for number in (match["value"], background)
    )
    rewrite.replace(node, aten.where, is_here, here, elsewhere)


def one_index_a_row(match: Match) -> Literal[True] | No:
    """Whether each row has one index."""
    result, index, dim = value_of(match.output), value_of(match["index"]), match["dim"]
    if index.dim() != result.dim() or result.dim() == 0:
        return No("the index has another number of dimensions")
    dim %= result.dim()
    if not known_equal(index.shape[dim], 1):
        return No(f"dimension {dim} has several indices")
    others = [d for d in range(result.dim()) if d != dim]
    if not known_equal([index.shape[d] for d in others], [result.shape[d] for d in others]):
        return No("not every row has an index")
    if isinstance(match.fake("value"), (torch.SymInt, torch.SymFloat)):
        return No("the value is not a number")
    if not is_row_major(result) or not is_row_major(index):
        return No("the result or the index is not row-major")
    return True
