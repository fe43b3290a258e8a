"""The linear compression of embeddings: `weight @ x` for each sample, with its features as the rows of `x`.

`eductor::lce` is one Triton kernel on CUDA, and a batched matmul on other devices. No operand is transposed or copied.
"""

from __future__ import annotations

from typing import Any

import torch

from eductor.ops.definition import define
from eductor.ops.launching import can_launch

aten = torch.ops.aten

ACTIVATIONS = ("none", "relu")


def _check(weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r}: it must be one of {', '.join(ACTIVATIONS)}")
    if weight.dim() != 2 or x.dim() < 2 or (bias is not None and bias.dim() != 1):
        raise ValueError("lce takes weight[M, N], x[..., N, D] and bias[M]")
    if weight.shape[1] != x.shape[-2] or (bias is not None and bias.shape[0] != weight.shape[0]):
        given = ", ".join(str(list(t.shape)) for t in (weight, x, bias) if t is not None)
        raise ValueError(f"lce takes weight[M, N], x[..., N, D] and bias[M]; their shapes are {given}")
    if any(t is not None and t.dtype != x.dtype for t in (weight, bias)):
        raise ValueError("lce takes operands of one dtype")


def _by_aten(weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    _check(weight, x, bias, activation)
    # Expand, since a matmul with a matrix may copy `x` to fold all samples into one product.
    result = torch.matmul(weight.expand(*x.shape[:-2], -1, -1), x)
    if bias is not None:
        result = result + bias.unsqueeze(-1)
    return (torch.relu(result) if activation == "relu" else result).contiguous()


def _on_cuda(weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    if not can_launch(weight, x, *([] if bias is None else [bias])):
        return _by_aten(weight, x, bias, activation)
    _check(weight, x, bias, activation)
    from eductor.ops.embedding_kernels import launch_lce

    return launch_lce(weight, x, bias, activation)


def _fake(weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    _check(weight, x, bias, activation)
    return x.new_empty((*x.shape[:-2], weight.shape[0], x.shape[-1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    weight, x, _, activation = inputs
    ctx.is_relu = activation == "relu"
    ctx.save_for_backward(weight, x, *([output] if ctx.is_relu else []))


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Uses differentiable operators only, for double backward."""
    weight, x, *outputs = ctx.saved_tensors
    needs_weight, needs_x, needs_bias, _ = ctx.needs_input_grad
    if ctx.is_relu:
        grad = aten.threshold_backward(grad, *outputs, 0)
    return (
        torch.einsum("...md,...nd->mn", grad, x) if needs_weight else None,
        lce(weight.t(), grad, None, "none") if needs_x else None,
        grad.sum([d for d in range(grad.dim()) if d != grad.dim() - 2]) if needs_bias else None,
        None,
    )


lce = define(
    "lce(Tensor weight, Tensor x, Tensor? bias, str activation) -> Tensor",
    _by_aten,
    on_cuda=_on_cuda,
    fake=_fake,
    tags=(torch.Tag.flexible_layout,),
)
"""weight[M, N], x[..., N, D], bias[M] -> [..., M, D], contiguous."""

torch.library.register_autograd("eductor::lce", _backward, setup_context=_save)
