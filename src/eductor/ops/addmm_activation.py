"""`eductor::addmm_activation`: a matrix product with a bias, then a relu or a tanh gelu.

On CUDA it is one kernel, ATen's `_addmm_activation`, which on other devices computes a different gelu.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from eductor.ops.definition import define


def _composed(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, use_gelu: bool) -> torch.Tensor:
    result = torch.addmm(bias, a, b)
    return F.gelu(result, approximate="tanh") if use_gelu else result.relu_()


def _on_cuda(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, use_gelu: bool) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten._addmm_activation.default(bias, a, b, use_gelu=use_gelu)
    return result


def _fake(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, use_gelu: bool) -> torch.Tensor:
    return torch.addmm(bias, a, b)


addmm_activation = define(
    "addmm_activation(Tensor bias, Tensor a, Tensor b, *, bool use_gelu) -> Tensor",
    _composed,
    on_cuda=_on_cuda,
    fake=_fake,
)
