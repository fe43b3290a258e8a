"""Running sums of a constant: multiples of it, which fuse, replace the scan."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.cost import device_of
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, value_of
from eductor.patterns import ANY, Match, const, op
from eductor.pipeline.base import Context

aten = torch.ops.aten
prims = torch.ops.prims

_CONSTANTS = {aten.full: None, aten.zeros: 0, aten.ones: 1}
"""Operators that make a uniform tensor of a given size, and of which number, if that is no argument of theirs."""


_CONSTANT = op(list(_CONSTANTS), ..., users=ANY)
CUMSUM = op(aten.cumsum, _CONSTANT, const("dim"), dtype=const("dtype"))


def pointless_cumsum(match: Match, graph: GraphView, rewrite: Rewriter, *, context: Context) -> None:
    """`cumsum(full(shape, v), dim)` is `(arange(n) + 1) * v`, in the dtype of the sum, along one dimension."""
    node, result = match.output, value_of(match.output)
    given = match.node_of(_CONSTANT)
    constant = graph.bind(given)
    assert isinstance(constant, Bound)
    number = value_of(constant.get("fill_value", _CONSTANTS[constant.packet]))
    if not isinstance(number, (bool, int, float)):
        return
    # What is added up is the number as the constant has it, brought to the dtype of the sum.
    number = torch.full([], number, dtype=value_of(given).dtype).to(result.dtype).item()
    if allowed := _may_multiply(match["dim"], result, number, context):
        _multiply(rewrite, node, constant["size"], match["dim"] % result.dim(), number)
    else:
        rewrite.reject(allowed, node)


def _multiply(rewrite: Rewriter, node: Node, sizes: Any, dim: int, number: float) -> None:
    def insert(op: Any, *args: Any, **kwargs: Any) -> Node:
        return rewrite.insert(op, *args, before=node, **kwargs)

    result = value_of(node)
    whole = {"start": 1, "step": 1, "dtype": torch.int64, "device": result.device, "requires_grad": False}
    counted = insert(prims.iota, sizes[dim], **whole)
    if result.dtype is not torch.int64:
        counted = insert(prims.convert_element_type, counted, result.dtype)
    multiples = insert(aten.mul.Tensor, counted, number)
    along = insert(aten.view, multiples, [sizes[dim] if d == dim else 1 for d in range(result.dim())])
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
    """Whether all multiples of a number, up to so many times, are numbers of a dtype."""
    if not isinstance(length, int) or not math.isfinite(number):
        return isinstance(length, int)
    kind = torch.finfo(dtype)
    digits = abs(number.as_integer_ratio()[0])
    while digits and digits % 2 == 0:
        digits //= 2
    return max(digits, 1) * max(length, 1) <= 2 / kind.eps and abs(number) * length <= kind.max
