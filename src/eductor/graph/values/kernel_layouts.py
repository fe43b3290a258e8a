"""Operators whose kernels return other strides than torch's fake mode computes.

A trace decides by fake strides what is a view, and which kernel an attention takes. Where they are wrong, the view fails
at run time, or the kernel computes other numbers. So these operators are decomposed in traces into what their kernels do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from eductor.compat import TorchDispatchMode, memory_format_of
from eductor.graph.values.operand_layouts import LAYOUTS, inner, is_inner

aten = torch.ops.aten
Table = Mapping[Any, Callable[..., Any]]


def with_kernel_layouts(decomposed: Table, now: Table) -> dict[Any, Callable[..., Any]]:
    """The decompositions `now` of a trace with a backward, and those that give results their kernel's strides.

    Of operators that are decomposed, now or later, only those whose results users see need the strides of their kernel.
    """
    inner = {op: fn for op, fn in _INSIDE.items() if op not in decomposed}
    return inner | dict(now) | {op: functools.partial(_with_fallback, fn, now.get(op)) for op, fn in _RETURNED.items()}


class KernelLayouts(TorchDispatchMode):
    """A mode in which results that users may see have the strides of their kernels."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _RETURNED:
            with self:
                result = _RETURNED[func](*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))


def _with_fallback(
    as_kernel: Callable[..., Any], fallback: Callable[..., Any] | None, *args: Any, **kwargs: Any
) -> Any:
    """Applies a kernel's decomposition; where that returns NotImplemented, the fallback, if there is one."""
    result = as_kernel(*args, **kwargs)
    return fallback(*args, **kwargs) if result is NotImplemented and fallback is not None else result


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


def _roll(input: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """The CPU kernel, which concatenates two parts in the memory format of its input; the fake mode makes it contiguous."""
    is_plain = input.device.type != "cpu" or memory_format_of(input) is torch.contiguous_format
    if is_plain or not dims or input.numel() == 0:
        return NotImplemented
    if len(dims) > 1:
        return aten.roll.default(aten.roll.default(input, shifts[:1], dims[:1]), shifts[1:], dims[1:])
    (shift,), (dim,) = shifts, dims
    size = input.shape[dim]
    start = (size - shift) % size
    return torch.cat([input.narrow(dim, start, size - start), input.narrow(dim, 0, start)], dim)


def _pad_backward(op: Any, gradient: torch.Tensor, input: torch.Tensor, padding: Sequence[Any]) -> Any:
    """The CPU kernel, whose result has the memory format of its input; the fake mode makes it contiguous.

    Planes have no memory format: an engine that calls the kernel, and checks the strides of its result, finds the fake ones.
    """
    memory_format = memory_format_of(input)
    if input.device.type != "cpu" or memory_format is torch.contiguous_format:
        return NotImplemented
    planes = op(gradient.flatten(0, 1), input.flatten(0, 1), padding)
    return planes.view(input.shape).clone(memory_format=memory_format)


def _in_format(op: Any, like: int | None, *args: Any) -> Any:
    """A CPU kernel whose first result has the memory format of the argument `like`, or is contiguous; the fake one's has not."""
    if is_inner() or args[0].device.type != "cpu":
        return NotImplemented
    results = inner(op, *args)
    first, *rest = results if isinstance(results, tuple) else (results,)
    wanted = torch.contiguous_format if like is None else memory_format_of(args[like])
    if isinstance(first, torch.Tensor) and not first.is_contiguous(memory_format=wanted):
        first = first.clone(memory_format=wanted)
    return (first, *rest) if rest else first


_INSIDE: dict[Any, Callable[..., Any]] = {
    aten.native_dropout_backward.default: _dropout_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
}
"""Operators where wrong strides would make views of their results fail."""
_FORMATS: dict[Any, int | None] = {
    aten.native_batch_norm.default: 0,
    aten._native_batch_norm_legit.default: 0,
    aten._native_batch_norm_legit.no_stats: 0,
    aten._native_batch_norm_legit_no_training.default: 0,
    aten._batch_norm_with_update.default: 0,
    aten._batch_norm_no_update.default: 0,
    aten.native_batch_norm_backward.default: 1,
    aten.batch_norm_backward.default: 1,
    aten.channel_shuffle.default: 0,
    aten.reflection_pad2d.default: 0,
    aten.replication_pad2d.default: 0,
    aten.reflection_pad3d.default: 0,
    aten.replication_pad3d.default: 0,
    aten.reflection_pad3d_backward.default: 1,
    aten.replication_pad3d_backward.default: 1,
    aten.glu_backward.default: None,
    aten.log_sigmoid_forward.default: None,
    aten.mse_loss_backward.default: None,
    aten.smooth_l1_loss_backward.default: None,
    aten.huber_loss_backward.default: None,
}
"""Operators whose result has the memory format of the argument at this place, or is contiguous: None."""
_PADS = (aten.reflection_pad2d_backward.default, aten.replication_pad2d_backward.default)
_RETURNED: dict[Any, Callable[..., Any]] = {
    aten.max_unpool2d.default: _max_unpool2d,
    aten.roll.default: _roll,
    **{op: functools.partial(_pad_backward, op) for op in _PADS},
    **{op: functools.partial(_in_format, op, like) for op, like in _FORMATS.items()},
    **{op: functools.partial(lay_out, op) for op, lay_out in LAYOUTS.items()},
}
"""Operators whose results may leave the graph directly, so that users see the strides."""
