"""Copies that an engine must make as they are: not fused into their use, of many operands at once, or with given strides."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eductor.ops.definition import define

stored = define("stored(Tensor x) -> Tensor", torch.clone)
"""Forces a value to be materialized as it is, although its use is a larger view of it."""


def _wide_cat(tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return torch.cat(list(tensors), dim)


wide_cat = define("wide_cat(Tensor[] tensors, int dim) -> Tensor", _wide_cat)
"""A cat of many inputs by one call of ATen's kernel, as a generated one would handle them one by one."""


def _laid_out(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    return x.new_empty_strided(x.shape, strides).copy_(x)


laid_out = define("laid_out(Tensor x, SymInt[] strides) -> Tensor", _laid_out)
"""A copy with the given strides, which may leave gaps.

A value that eager writes in place keeps its layout; functionalized, it becomes a new value. Vectorized kernels may round
the last elements of a row differently, so rows must end where they did.
"""

torch.library.register_autograd("eductor::laid_out", lambda ctx, gradient: (gradient, None))
