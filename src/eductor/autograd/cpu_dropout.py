"""Decompositions of dropout on a CPU that round as eager does.

Eager divides its mask of zeros and ones by the keep probability, in the dtype of the values. The traced operator
multiplies by the reciprocal, which is rounded in another place: for some probabilities that is another number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def eagers_dropouts() -> dict[Any, Callable[..., Any]]:
    """Decompositions of dropout and its gradient, where the traced operator would round differently from eager."""
    return {aten.native_dropout.default: _Dropout(), aten.native_dropout_backward.default: _dropout_backward}


class _Dropout:
    """The operator itself draws the mask, as eager does; only the product differs."""

    def __init__(self) -> None:
        self._draws = False

    def __call__(self, x: torch.Tensor, p: float, train: bool | None) -> Any:
        if self._draws or x.device.type != "cpu" or train is False or not 0 < p < 1:
            return NotImplemented
        factor = _noise(1 - p, x.dtype)
        # The kernel rounds its factor as well, but in one step.
        if factor == _rounded(1 / (1 - p), x.dtype):
            return NotImplemented
        self._draws = True
        try:
            _, mask = aten.native_dropout.default(x, p, train)
        finally:
            self._draws = False
        return x * mask * factor, mask


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    if gradient.device.type != "cpu":
        return NotImplemented
    return gradient * mask * (_noise(1 / scale, gradient.dtype) if scale > 0 else scale)


def _noise(share: float, dtype: torch.dtype) -> float:
    """The reciprocal of the keep probability as eager's kernels compute it: half precision in float32."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return _rounded(_rounded(1 / _rounded(share, wide), wide), dtype)


def _rounded(value: float, dtype: torch.dtype) -> float:
    """A number rounded to a dtype: to nearest, ties to even."""
    mantissa, exponent = math.frexp(value)
    half = torch.finfo(dtype).eps / 2
    return math.ldexp(round(mantissa / half) * half, exponent)
