"""`eductor::online_softmax`: the maximum of a dimension, and the sum of exp(x - max) over it.

The Inductor engine makes one kernel of it, which reads its input once.
"""

from __future__ import annotations

import torch

from eductor.ops.definition import define


def _composed(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    largest = x.amax(dim, keepdim=True)
    return largest, (x - largest).exp().sum(dim, keepdim=True)


online_softmax = define("online_softmax(Tensor x, int dim) -> (Tensor, Tensor)", _composed)
