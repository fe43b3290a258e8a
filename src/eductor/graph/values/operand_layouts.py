"""Operators that lay out their result by their operands in one order, where torch's fake mode has another or none.

Kernels that compute element by element take the layout of the first operand that decides it. The fake mode runs Python
decompositions of some of them, which read their operands in another order. All devices share these rules.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from eductor.graph.values.meta import hint_of, known_equal

aten = torch.ops.aten
_is_inner: ContextVar[bool] = ContextVar("eductor_is_inner_call", default=False)


def is_inner() -> bool:
    """Whether an operator is called by its own decomposition."""
    return _is_inner.get()


def inner(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of an operator itself, called by its own decomposition."""
    token = _is_inner.set(True)
    try:
        return op(*args, **kwargs)
    finally:
        _is_inner.reset(token)


def by_operands(op: Any, *operands: Any, **kwargs: Any) -> Any:
    """A result with the layout of a sum of the operands, as the kernels of all such operators have it."""
    return _laid_out(op, operands, kwargs, lambda: aten.add.Tensor(*operands))


def by_power(op: Any, *operands: Any, **kwargs: Any) -> Any:
    """The product of the first operand and a power of two, whose memory is contiguous."""
    return _laid_out(op, operands, kwargs, lambda: aten.add.Tensor(operands[0], operands[1].contiguous()))


def by_first(op: Any, *operands: Any, **kwargs: Any) -> Any:
    """A result with the layout of the first operand, as `empty_like` makes it."""
    return _laid_out(op, operands, kwargs, lambda: operands[0].clone())


def contiguous(op: Any, *operands: Any, **kwargs: Any) -> Any:
    """A result in contiguous memory, whatever the layout of its operands is."""
    return _laid_out(op, operands, kwargs, None)


def contiguous_if_complex(op: Any, operand: torch.Tensor) -> Any:
    """A result in contiguous memory for a complex operand; any other operand has its layout in the fake mode, too."""
    return contiguous(op, operand) if operand.is_complex() else NotImplemented


def _laid_out(
    op: Any, operands: tuple[Any, ...], kwargs: dict[str, Any], like: Callable[[], torch.Tensor] | None
) -> Any:
    """The result of a call in the layout of another value, or contiguous; NotImplemented if operands leave no choice."""
    if is_inner() or all(x.is_contiguous() for x in operands if isinstance(x, torch.Tensor)):
        return NotImplemented
    result = inner(op, *operands, **kwargs)
    return result.contiguous() if like is None else in_layout_of(result, like())


def in_layout_of(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A value, copied into the layout of a dense one if it has another; a reduced value has no dimensions to lay out."""
    order = _order(like)
    if order is None or not value.dim() or known_equal(tuple(value.stride()), tuple(like.stride())):
        return value
    inverse = [order.index(dim) for dim in range(len(order))]
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


def _order(value: torch.Tensor) -> list[int] | None:
    """The dimensions of a dense value from the largest stride to the smallest; None where strides are unknown."""
    strides = [(hint_of(stride), hint_of(size)) for stride, size in zip(value.stride(), value.shape, strict=True)]
    if any(None in pair for pair in strides):
        return None
    return sorted(range(value.dim()), key=strides.__getitem__, reverse=True)


LAYOUTS: dict[Any, Callable[..., Any]] = {
    aten.copysign.Tensor: by_operands,
    aten.div.Tensor_mode: by_operands,
    aten.floor_divide.default: by_operands,
    aten.heaviside.default: by_operands,
    aten.logaddexp.default: by_operands,
    aten.logaddexp2.default: by_operands,
    aten.logical_and.default: by_operands,
    aten.logical_or.default: by_operands,
    aten.logical_xor.default: by_operands,
    aten.special_xlog1py.default: by_operands,
    aten.xlogy.Tensor: by_operands,
    aten.ldexp.Tensor: by_power,
    aten.binary_cross_entropy.default: by_first,
    aten.angle.default: contiguous_if_complex,
    aten._log_softmax_backward_data.default: contiguous,
    aten.isin.Tensor_Scalar: contiguous,
    aten.isin.Tensor_Tensor: contiguous,
    aten.normal.Tensor_Tensor: contiguous,
    aten.normal.Tensor_float: contiguous,
    aten.normal.float_Tensor: contiguous,
    aten.pow.Scalar: contiguous,
    aten.rrelu_with_noise.default: contiguous,
}
"""How each of these operators lays out its result."""
