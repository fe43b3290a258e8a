"""Operators that stand for several of ATen's, as engines and devices have one kernel for all of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from eductor.ops.definition import define


def _addmm_activation(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, use_gelu: bool) -> torch.Tensor:
    result = torch.addmm(bias, a, b)
    return F.gelu(result, approximate="tanh") if use_gelu else result.relu_()


def _on_cuda(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, use_gelu: bool) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten._addmm_activation.default(bias, a, b, use_gelu=use_gelu)
    return result


def _fake(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, use_gelu: bool) -> torch.Tensor:
    return torch.addmm(bias, a, b)


addmm_activation = define(
    "addmm_activation(Tensor bias, Tensor a, Tensor b, *, bool use_gelu) -> Tensor",
    _addmm_activation,
    on_cuda=_on_cuda,
    fake=_fake,
)
"""A matrix product with a bias, then a relu or a tanh gelu.

On CUDA it is one kernel, ATen's `_addmm_activation`, which on other devices computes a different gelu.
"""


def _online_softmax(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    largest = x.amax(dim, keepdim=True)
    return largest, (x - largest).exp().sum(dim, keepdim=True)


online_softmax = define("online_softmax(Tensor x, int dim) -> (Tensor, Tensor)", _online_softmax)
"""The maximum of a dimension, and the sum of exp(x - max) over it.

The Inductor engine makes one kernel of it, which reads its input once.
"""
