"""`eductor::stored`: forces a value to be materialized as it is, although its use is a larger view of it."""

from __future__ import annotations

import torch

torch.library.define("eductor::stored", "(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))

stored = torch.ops.eductor.stored


@torch.library.impl("eductor::stored", "CompositeExplicitAutograd")
def _stored(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.register_fake("eductor::stored")  # type: ignore[untyped-decorator]
def _fake_stored(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
