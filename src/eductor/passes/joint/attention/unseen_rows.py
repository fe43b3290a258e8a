"""Rows of scores that masks hide entirely by -inf, whose gradients the kernel does not compute as eager does.

In eager, the weights of such a row are NaN, and so are its result and the gradients of all values. But a score that a
condition replaced gets no gradient: those of the row's query and of a key are NaN only where a mask was added to a score.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from eductor.graph import known_equal

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def with_gradients(unseen: torch.Tensor, added: torch.Tensor | None, operands: Operands) -> Operands:
    """Query, key, value and bias, whose gradients are NaN where eager's are.

    `unseen` are the rows without a key, `added` the scores in them that no condition replaced.
    """
    query, key, value, bias = operands
    value = _filled(value, unseen.any(-2, keepdim=True))
    if added is None:
        return query, key, value, bias
    of_keys = added.any(-2, keepdim=True).transpose(-1, -2)
    return _filled(query, added.any(-1, keepdim=True)), _filled(key, of_keys), value, _filled(bias, unseen)


def _filled(operand: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """An operand with NaN in its gradient; heads that share a key are reduced to one."""
    if not operand.requires_grad:
        return operand
    heads = operand.shape[1]
    if not known_equal(where.shape[1], 1) and not known_equal(where.shape[1], heads):
        where = where.reshape(where.shape[0], heads, -1, *where.shape[2:]).any(2)
    filled: torch.Tensor = _FilledGradient.apply(operand, where)  # type: ignore[no-untyped-call]
    return filled


class _FilledGradient(torch.autograd.Function):
    """A value whose gradient is NaN in places."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        ctx.where = where
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.where(ctx.where, math.nan, gradients[0]), None
