"""Operators whose kernels lay their results out otherwise than torch's fake mode says.

A trace decides by fake values what is a view. Where they are wrong, the view fails at run time. So these operators are
traced as what their kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch

aten = torch.ops.aten


def as_laid_out(taken_apart: Container[Any]) -> dict[Any, Callable[..., Any]]:
    """Decompositions for a trace with a backward, but for operators that are taken apart anyway."""
    return {op: fn for op, fn in _AS_LAID_OUT.items() if op not in taken_apart}


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """What the kernel of the CPU does, laid out as its operands are; others do it in one step, as the fake mode says."""
    return gradient * mask * scale if gradient.device.type == "cpu" else NotImplemented


def _layer_norm_backward(gradient: torch.Tensor, input: torch.Tensor, *rest: Any) -> Any:
    """The kernel copies what is not contiguous, and its result is; the fake mode says that it is like the gradient."""
    if gradient.is_contiguous() and input.is_contiguous():
        return NotImplemented
    return aten.native_layer_norm_backward.default(gradient.contiguous(), input.contiguous(), *rest)


_AS_LAID_OUT: dict[Any, Callable[..., Any]] = {
    aten.native_dropout_backward.default: _dropout_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
}
