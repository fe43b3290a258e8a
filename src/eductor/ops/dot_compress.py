"""The compressed dot interaction: `x @ (weight @ x)^T` for each sample, without the products of all pairs `x @ x^T`.

`eductor::dot_compress` is one Triton kernel on CUDA, and two batched matmuls on other devices.
"""

from __future__ import annotations

from typing import Any

import torch

from eductor.ops.definition import define
from eductor.ops.launching import can_launch
from eductor.ops.lce import lce

MOST_FEATURES = 256
"""The limit for using the kernel, which recomputes all compressed features for each tile of features."""


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        raise ValueError(
            f"dot_compress takes x[B, N, D] and weight[K, N]; their shapes are {list(x.shape)}, {list(weight.shape)}"
        )
    if weight.dtype != x.dtype:
        raise ValueError("dot_compress takes operands of one dtype")


def _compress(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    compressed: torch.Tensor = lce(weight, x, None, "none")
    return compressed


def _by_aten(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    _check(x, weight)
    return torch.bmm(x, _compress(weight, x).mT).contiguous()


def _on_cuda(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if not can_launch(x, weight) or x.dim() != 3 or x.shape[1] > MOST_FEATURES:
        return _by_aten(x, weight)
    _check(x, weight)
    from eductor.ops.embedding_kernels import launch_dot_compress

    return launch_dot_compress(x, weight)


def _fake(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    _check(x, weight)
    return x.new_empty((x.shape[0], x.shape[1], weight.shape[0]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Uses differentiable operators only, for double backward. Recomputes the compressed features."""
    x, weight = ctx.saved_tensors
    needs_x, needs_weight = ctx.needs_input_grad
    of_compressed = torch.bmm(grad.mT, x)
    return (
        torch.bmm(grad, _compress(weight, x)) + _compress(weight.t(), of_compressed) if needs_x else None,
        torch.einsum("bkd,bnd->kn", of_compressed, x) if needs_weight else None,
    )


dot_compress = define(
    "dot_compress(Tensor x, Tensor weight) -> Tensor",
    _by_aten,
    on_cuda=_on_cuda,
    fake=_fake,
    tags=(torch.Tag.flexible_layout,),
)
"""x[B, N, D], weight[K, N] -> [B, N, K], contiguous."""

torch.library.register_autograd("eductor::dot_compress", _backward, setup_context=_save)
