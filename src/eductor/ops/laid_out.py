"""`eductor::laid_out`: a copy with strides of its own, with gaps where they leave some.

What eager writes in place keeps its layout; a functional graph makes a new value of it. Kernels that compute several
elements at once round the last ones of a row otherwise, so where a row ends must stay as it was.
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
