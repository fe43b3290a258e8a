"""Decomposition tables: which operators are taken apart in the trace of autograd, and which only after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from eductor.compat import OpOverload

Table = dict[Any, Callable[..., Any]]
aten = torch.ops.aten


def for_autograd(table: Mapping[Any, Callable[..., Any]], *, later: bool) -> Table:
    """For the trace in which operators still write: what writes in place, or to `out=`, waits until it is functional.

    With `later`, all of the table waits. What is not in it has the layouts that its kernels give it from the start.
    """
    laid_out = {op: fn for op, fn in _AS_LAID_OUT.items() if op not in table}
    return laid_out | ({} if later else {op: fn for op, fn in table.items() if not _writes_by_name(op)})


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """What the kernel of the CPU does, laid out as its operands are; others do it in one step, as the fake mode says."""
    return gradient * mask * scale if gradient.device.type == "cpu" else NotImplemented


def _layer_norm_backward(gradient: torch.Tensor, input: torch.Tensor, *rest: Any) -> Any:
    """The kernel copies what is not contiguous, and its result is; the fake mode says that it is like the gradient."""
    if gradient.is_contiguous() and input.is_contiguous():
        return NotImplemented
    return aten.native_layer_norm_backward.default(gradient.contiguous(), input.contiguous(), *rest)


_AS_LAID_OUT: Table = {
    aten.native_dropout_backward.default: _dropout_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
}
"""Operators whose kernels lay results out otherwise than torch's fake mode says: a view of these would fail at run time."""


def _writes_by_name(op: Any) -> bool:
    if not isinstance(op, OpOverload) or not op._schema.is_mutable:
        return False
    return op._schema.name.endswith("_") or any(a.is_out for a in op._schema.arguments)
