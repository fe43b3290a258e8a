"""Computes rounded divisions and remainders of floating-point numbers by eager's formula."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, Rewriter, tensor_of
from eductor.pipeline.base import f16, f32, graph_pass, i64

aten = torch.ops.aten
_WIDE = (torch.float32, torch.float64)


@graph_pass(stage="lower", numerics="exact")
def divide_as_eager(graph: GraphView, rewrite: Rewriter) -> None:
    """Computes rounded divisions and remainders of floating-point numbers by eager's formula.

    Eager derives floor divisions and remainders from the exact `fmod`: 1.0 // 0.1 is 9, as 0.1 is a little more than a
    tenth. Inductor takes the floor of the rounded quotient, which is 10, and has NaN for infinite divisors. In half
    precision eager truncates a quotient that is rounded to half precision, Inductor one in float32.

    It pays always: the result is wrong without it.
    """
    for node in graph.find(aten.div, aten.floor_divide, aten.remainder):
        bound, result = graph.bind(node), tensor_of(node)
        if not isinstance(bound, Bound) or result is None:
            rewrite.reject("its result is not one tensor", node)
        elif bound.packet is aten.div and bound.get("rounding_mode") is None:
            rewrite.reject("it does not round its quotient", node)
        elif not result.is_floating_point():
            rewrite.reject("it divides integers, which is exact", node)
        elif bound.get("rounding_mode") == "trunc" and result.dtype in _WIDE:
            rewrite.reject("Inductor truncates quotients in single and double precision as eager does", node)
        else:
            _replace(rewrite, node, bound, result)


def _replace(rewrite: Rewriter, node: Node, bound: Bound, result: torch.Tensor) -> None:
    """Replaces a call by its formula, in float32 if its numbers are narrower."""
    dtype, divisor = result.dtype, tensor_of(bound["other"])
    by_number = divisor is None or (divisor.dim() == 0 and divisor.device.type == "cpu")
    divides, truncates = bound.packet is not aten.remainder, bound.get("rounding_mode") == "trunc"
    calls = _Calls(rewrite, node, result, dtype if dtype in _WIDE else torch.float32)
    # Eager divides by a number in float32. By a tensor, it rounds each step to the dtype of the result.
    a = calls.operand(bound["self"], dtype)
    b = calls.operand(bound["other"], calls.wide if divides and by_number else dtype)
    rounded = partial(calls.rounded, dtype=calls.wide if by_number else dtype)
    if truncates:
        value = calls(aten.trunc.default, rounded(calls(aten.div.Tensor, a, b)))
    else:
        value = _floor_division(calls, a, b, rounded) if divides else _remainder(calls, a, b)
    rewrite.replace(node, calls.cast(value, dtype))


class _Calls:
    """Inserts calls before a node, on tensors of one dtype."""

    def __init__(self, rewrite: Rewriter, node: Node, result: torch.Tensor, wide: torch.dtype) -> None:
        self._rewrite, self._node, self._result, self.wide = rewrite, node, result, wide

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        return self._rewrite.insert(op, *args, before=self._node, like=self._node, **kwargs)

    def cast(self, value: Node, dtype: torch.dtype) -> Node:
        known = tensor_of(value)
        if known is not None and known.dtype == dtype:
            return value
        return self(torch.ops.prims.convert_element_type.default, value, dtype)

    def rounded(self, value: Node, dtype: torch.dtype) -> Node:
        return self.cast(self.cast(value, dtype), self.wide)

    def operand(self, value: Any, dtype: torch.dtype) -> Node:
        """A tensor or a number, rounded to a dtype."""
        if tensor_of(value) is None:
            if not isinstance(value, Node):
                value = torch.tensor(value, dtype=dtype).item()
            value = self(aten.full.default, [], value, dtype=self.wide, device=self._result.device)
        return self.rounded(value, dtype)


def _floor_division(call: _Calls, a: Node, b: Node, rounded: Callable[[Node], Node]) -> Node:
    remainder = call(aten.fmod.Tensor, a, b)
    exact = rounded(call(aten.div.Tensor, rounded(call(aten.sub.Tensor, a, remainder)), b))
    below = rounded(call(aten.sub.Tensor, exact, 1))
    exact = call(aten.where.self, _other_sign(call, remainder, b), below, exact)
    floor = call(aten.floor.default, exact)
    is_above = call(aten.gt.Scalar, rounded(call(aten.sub.Tensor, exact, floor)), 0.5)
    floor = call(aten.where.self, is_above, rounded(call(aten.add.Tensor, floor, 1)), floor)
    quotient = call(aten.div.Tensor, a, b)
    zero = call(aten.copysign.Tensor, call.operand(0, call.wide), quotient)
    floor = call(aten.where.self, call(aten.eq.Scalar, exact, 0), zero, floor)
    return call(aten.where.self, call(aten.eq.Scalar, b, 0), quotient, floor)


def _remainder(call: _Calls, a: Node, b: Node) -> Node:
    remainder = call(aten.fmod.Tensor, a, b)
    return call(aten.where.self, _other_sign(call, remainder, b), call(aten.add.Tensor, remainder, b), remainder)


def _other_sign(call: _Calls, remainder: Node, b: Node) -> Node:
    """Where the remainder is not zero and has the other sign than the divisor."""
    differ = call(aten.bitwise_xor.Tensor, call(aten.lt.Scalar, b, 0), call(aten.lt.Scalar, remainder, 0))
    return call(aten.bitwise_and.Tensor, call(aten.ne.Scalar, remainder, 0), differ)


@divide_as_eager.example
def floor_of_a_quotient(x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(3)) -> torch.Tensor:
    return x // y


@divide_as_eager.example
def floor_in_half_precision(x: torch.Tensor = f16(4), y: torch.Tensor = f16(4)) -> tuple[torch.Tensor, torch.Tensor]:
    return x // y, x // 0.1


@divide_as_eager.example
def remainder(x: torch.Tensor = f32(4), y: torch.Tensor = f32(4)) -> tuple[torch.Tensor, torch.Tensor]:
    return x % y, x % 0.1


@divide_as_eager.example
def truncated_in_half_precision(x: torch.Tensor = f16(4), y: torch.Tensor = f16(4)) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="trunc")


@divide_as_eager.refuses("does not round its quotient")
def quotient(x: torch.Tensor = f32(4), y: torch.Tensor = f32(4)) -> torch.Tensor:
    return x / y


@divide_as_eager.refuses("truncates quotients in single and double precision")
def truncated_in_float32(x: torch.Tensor = f32(4), y: torch.Tensor = f32(4)) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="trunc")


@divide_as_eager.refuses("divides integers")
def integers(x: torch.Tensor = i64(4)) -> torch.Tensor:
    return x // 3
