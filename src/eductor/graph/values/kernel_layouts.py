"""Operators whose kernels return other strides than torch's fake mode computes.

A trace decides by fake strides what is a view. Where they are wrong, the view fails at run time. So these operators are
decomposed in traces into what their kernels do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from eductor.compat import memory_format_of

aten = torch.ops.aten
Table = Mapping[Any, Callable[..., Any]]


def with_kernel_layouts(decomposed: Table, now: Table) -> dict[Any, Callable[..., Any]]:
    """The decompositions `now` of a trace with a backward, and those that give results their kernel's strides.

    Of operators that are decomposed, now or later, only those whose results users see need the strides of their kernel.
    """
    inner = {op: fn for op, fn in _INSIDE.items() if op not in decomposed}
    return inner | dict(now) | {op: functools.partial(_with_fallback, fn, now.get(op)) for op, fn in _RETURNED.items()}


def _with_fallback(as_kernel: Callable[..., Any], fallback: Callable[..., Any] | None, *args: Any) -> Any:
    """Applies a kernel's decomposition; where that returns NotImplemented, the fallback, if there is one."""
    result = as_kernel(*args)
    return fallback(*args) if result is NotImplemented and fallback is not None else result


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """The CPU kernel, which keeps the strides of its operands; other kernels return what the fake mode computes."""
    return gradient * mask * scale if gradient.device.type == "cpu" else NotImplemented


def _layer_norm_backward(gradient: torch.Tensor, input: torch.Tensor, *rest: Any) -> Any:
    """The kernel copies operands to contiguous, and so is its result; the fake mode uses the gradient's strides."""
    if gradient.is_contiguous() and input.is_contiguous():
        return NotImplemented
    return aten.native_layer_norm_backward.default(gradient.contiguous(), input.contiguous(), *rest)


def _max_unpool2d(input: torch.Tensor, *rest: Any) -> Any:
    """The CPU kernel keeps the memory format of its input; the fake mode makes its result contiguous."""
    memory_format = memory_format_of(input)
    if input.device.type != "cpu" or memory_format is torch.contiguous_format:
        return NotImplemented
    result = aten.max_unpool2d.default(input.clone(memory_format=torch.contiguous_format), *rest)
    return result.clone(memory_format=memory_format)


_INSIDE: dict[Any, Callable[..., Any]] = {
    aten.native_dropout_backward.default: _dropout_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
}
"""Operators where wrong strides would make views of their results fail."""
_RETURNED: dict[Any, Callable[..., Any]] = {aten.max_unpool2d.default: _max_unpool2d}
"""Operators whose results may leave the graph directly, so that users see the strides."""
