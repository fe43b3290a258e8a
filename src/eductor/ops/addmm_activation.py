"""`eductor::addmm_activation`: a matrix product with a bias, then a relu or a tanh gelu.

On CUDA it is one kernel, ATen's `_addmm_activation`, which on other devices computes a different gelu.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

torch.library.define(
    "eductor::addmm_activation",
    "(Tensor bias, Tensor a, Tensor b, *, bool use_gelu) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)

addmm_activation = torch.ops.eductor.addmm_activation


def _composed(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, use_gelu: bool) -> torch.Tensor:
    result = torch.addmm(bias, a, b)
    return F.gelu(result, approximate="tanh") if use_gelu else result.relu_()


def _on_cuda(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, use_gelu: bool) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten._addmm_activation.default(bias, a, b, use_gelu=use_gelu)
    return result


@torch.library.register_fake("eductor::addmm_activation")  # type: ignore[untyped-decorator]
def _fake(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, use_gelu: bool) -> torch.Tensor:
    return torch.addmm(bias, a, b)


torch.library.impl("eductor::addmm_activation", "CompositeExplicitAutograd", _composed)
torch.library.impl("eductor::addmm_activation", "CUDA", _on_cuda)
