"""`eductor::laid_out`: a copy with the given strides, which may leave gaps.

A value that eager writes in place keeps its layout; functionalized, it becomes a new value. Vectorized kernels may round
the last elements of a row differently, so rows must end where they did.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

torch.library.define("eductor::laid_out", "(Tensor x, SymInt[] strides) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))

laid_out = torch.ops.eductor.laid_out


@torch.library.impl("eductor::laid_out", "CompositeExplicitAutograd")
def _laid_out(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    return x.new_empty_strided(x.shape, strides).copy_(x)


@torch.library.register_fake("eductor::laid_out")  # type: ignore[untyped-decorator]
def _fake_laid_out(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    return x.new_empty_strided(x.shape, strides)


torch.library.register_autograd("eductor::laid_out", lambda ctx, gradient: (gradient, None))
