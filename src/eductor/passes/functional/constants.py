"""Scatters into constants and running sums of constants: computed from positions, which fuses, unlike a scatter or a scan."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.cost import device_of
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_equal, value_of
from eductor.patterns import ANY, Match, const, op, var
from eductor.pipeline.base import Context

aten = torch.ops.aten
prims = torch.ops.prims

_CONSTANTS = {aten.full: None, aten.zeros: 0, aten.ones: 1, aten.new_zeros: 0, aten.new_ones: 1, aten.new_full: None}
"""Operators that make a uniform tensor of a given size, and of which number, if that is no argument of theirs."""

_CONSTANT = op(list(_CONSTANTS), ..., users=ANY)
ONE_HOT = op(aten.scatter.value, _CONSTANT, const("dim"), var("index"), const("value"))
CUMSUM = op(aten.cumsum, _CONSTANT, const("dim"), dtype=const("dtype"))


def _constant(match: Match, graph: GraphView) -> tuple[list[Any], Any]:
    """The sizes and the number of the constant that was matched."""
    constant = graph.bind(match.node_of(_CONSTANT))
    assert isinstance(constant, Bound)
    return constant["size"], constant.get("fill_value", _CONSTANTS[constant.packet])


def _along(dim: int, sizes: list[Any]) -> list[Any]:
    """The shape of one number for each position along a dimension."""
    return [size if d == dim else 1 for d, size in enumerate(sizes)]


def scatter_upon_const_tensor(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    """`scatter(full(shape, b), dim, index, v)` with one index a row is `where(index == arange, v, b)`.

    The index is read through `gather`, so that one out of range is an error as before.
    """
    node, (sizes, background) = match.output, _constant(match, graph)
    insert, result, index = partial(rewrite.insert, before=node), value_of(node), match["index"]
    device, dim = result.device, match["dim"] % result.dim()
    whole = {"start": 0, "step": 1, "dtype": value_of(index).dtype, "device": device, "requires_grad": False}
    along = insert(aten.view, insert(prims.iota, sizes[dim], **whole), _along(dim, sizes))
    checked = insert(aten.gather, insert(aten.expand, along, sizes), dim, index)
    is_here = insert(aten.eq, checked, along)
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


def pointless_cumsum(match: Match, graph: GraphView, rewrite: Rewriter, *, context: Context) -> None:
    """`cumsum(full(shape, v), dim)` is `(arange(n) + 1) * v`, in the dtype of the sum, along one dimension."""
    node, result, (sizes, filled) = match.output, value_of(match.output), _constant(match, graph)
    number = value_of(filled)
    if not isinstance(number, (bool, int, float)):
        return
    # What is added up is the number as the constant has it, brought to the dtype of the sum.
    number = torch.full([], number, dtype=value_of(match.node_of(_CONSTANT)).dtype).to(result.dtype).item()
    if allowed := _may_multiply(match["dim"], result, number, context):
        _multiply(rewrite, node, sizes, match["dim"] % result.dim(), number)
    else:
        rewrite.reject(allowed, node)


def _multiply(rewrite: Rewriter, node: Node, sizes: Any, dim: int, number: float) -> None:
    insert, result = partial(rewrite.insert, before=node), value_of(node)
    whole = {"start": 1, "step": 1, "dtype": torch.int64, "device": result.device, "requires_grad": False}
    counted = insert(prims.iota, sizes[dim], **whole)
    if result.dtype is not torch.int64:
        counted = insert(prims.convert_element_type, counted, result.dtype)
    multiples = insert(aten.mul.Tensor, counted, number)
    along = insert(aten.view, multiples, _along(dim, sizes))
    rewrite.replace(node, aten.clone, insert(aten.expand, along, list(sizes)), memory_format=torch.contiguous_format)


def _may_multiply(dim: int, result: torch.Tensor, number: float, context: Context) -> Literal[True] | No:
    if not device_of(result.device, context.options).fuses:
        return No("without fusing, several kernels would take the place of one")
    if result.dim() == 0:
        return No("it has no dimensions")
    if result.dtype is torch.bool or result.dtype.is_complex:
        return No(f"sums of {result.dtype} are left as they are")
    if not is_row_major(result):
        return No("its result is not row-major")
    if not result.dtype.is_floating_point:
        return True
    if number == 0 and math.copysign(1, number) < 0:
        return No("a sum of -0.0 is 0.0")
    length = result.shape[dim % result.dim()]
    return True if _is_exact(number, length, result.dtype) else No("sums of this number are rounded, step by step")


def _is_exact(number: float, length: Any, dtype: torch.dtype) -> bool:
    """Whether a dtype represents all multiples of a number up to this length exactly."""
    if not isinstance(length, int) or not math.isfinite(number):
        return isinstance(length, int)
    kind = torch.finfo(dtype)
    digits = abs(number.as_integer_ratio()[0])
    while digits and digits % 2 == 0:
        digits //= 2
    return max(digits, 1) * max(length, 1) <= 2 / kind.eps and abs(number) * length <= kind.max
