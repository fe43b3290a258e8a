"""`eductor::wide_cat`: a cat of many inputs by one call of ATen's kernel, as a generated one would handle them one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

torch.library.define("eductor::wide_cat", "(Tensor[] tensors, int dim) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))

wide_cat = torch.ops.eductor.wide_cat


@torch.library.impl("eductor::wide_cat", "CompositeExplicitAutograd")
def _wide_cat(tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return torch.cat(list(tensors), dim)


@torch.library.register_fake("eductor::wide_cat")  # type: ignore[untyped-decorator]
def _fake_wide_cat(tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return torch.cat(list(tensors), dim)
