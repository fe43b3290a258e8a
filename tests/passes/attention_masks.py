"""Masks that hide whole rows, and the gradients of attention under them: for the suites of the CPU and of the GPU."""

from __future__ import annotations

import torch


def lowest(number, dtype):
    """What hides: a number as text, or the least one of the dtype."""
    return torch.finfo(dtype).min if number == "least" else float(number)


def gradients(fn, given, masks, tangent):
    """A result and the gradients of the tensors that are given, for a tangent made of the result."""
    given = [x.detach().clone().requires_grad_() for x in given]
    out = fn(*given, *masks)
    return [out.detach(), *torch.autograd.grad(out, given, tangent(out))]


def with_all_digits(mask):
    """In float64, and with rows hidden by an ordinary number shifted to zero: even float64 would round their scores."""
    wide = mask.double()
    top = wide.amax(-1, keepdim=True)
    return torch.where((top < -1e6) & (top > -1e12), wide - top, wide)
