"""`eductor::online_softmax`: the maximum of a dimension, and the sum of exp(x - max) over it.

The Inductor engine makes one kernel of it, which reads its input once.
"""

from __future__ import annotations

import torch

torch.library.define(
    "eductor::online_softmax", "(Tensor x, int dim) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,)
)

online_softmax = torch.ops.eductor.online_softmax


def _composed(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    largest = x.amax(dim, keepdim=True)
    return largest, (x - largest).exp().sum(dim, keepdim=True)


torch.library.impl("eductor::online_softmax", "CompositeExplicitAutograd", _composed)
torch.library.register_fake("eductor::online_softmax", _composed)
