"""Operators whose kernels lay their results out otherwise than torch's fake mode says.

A trace decides by fake values what is a view. Where they are wrong, the view fails at run time. So these operators are
traced as what their kernels do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from eductor.compat import memory_format_of

aten = torch.ops.aten
Table = Mapping[Any, Callable[..., Any]]


def as_laid_out(taken_apart: Table, now: Table) -> dict[Any, Callable[..., Any]]:
    """Decompositions for a trace with a backward: layouts beside those that the trace has, which `now` lists.

    Of operators that are taken apart, now or afterwards, only those need the layout of their kernel that a user sees.
    """
    inner = {op: fn for op, fn in _INSIDE.items() if op not in taken_apart}
    return inner | dict(now) | {op: functools.partial(_laid_out, fn, now.get(op)) for op, fn in _RETURNED.items()}


def _laid_out(as_kernel: Callable[..., Any], otherwise: Callable[..., Any] | None, *args: Any) -> Any:
    """The one decomposition; where it has nothing to say of a call, the other one, if there is one."""
    result = as_kernel(*args)
    return otherwise(*args) if result is NotImplemented and otherwise is not None else result


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """What the kernel of the CPU does, laid out as its operands are; others do it in one step, as the fake mode says."""
    return gradient * mask * scale if gradient.device.type == "cpu" else NotImplemented


def _layer_norm_backward(gradient: torch.Tensor, input: torch.Tensor, *rest: Any) -> Any:
    """The kernel copies what is not contiguous, and its result is; the fake mode says that it is like the gradient."""
    if gradient.is_contiguous() and input.is_contiguous():
        return NotImplemented
    return aten.native_layer_norm_backward.default(gradient.contiguous(), input.contiguous(), *rest)


def _max_unpool2d(input: torch.Tensor, *rest: Any) -> Any:
    """The kernel of the CPU keeps the memory format of its input; the fake mode says that its result is contiguous."""
    memory_format = memory_format_of(input)
    if input.device.type != "cpu" or memory_format is torch.contiguous_format:
        return NotImplemented
    result = aten.max_unpool2d.default(input.clone(memory_format=torch.contiguous_format), *rest)
    return result.clone(memory_format=memory_format)


_INSIDE: dict[Any, Callable[..., Any]] = {
    aten.native_dropout_backward.default: _dropout_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
}
"""Views of their results would fail."""
_RETURNED: dict[Any, Callable[..., Any]] = {aten.max_unpool2d.default: _max_unpool2d}
"""Their results may leave the graph as they are, and users see the layout."""
