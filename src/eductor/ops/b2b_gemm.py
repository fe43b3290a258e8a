"""Two matrix products back to back with a pointwise function between them: `f(a @ b + inner_bias) @ c + outer_bias`.

`eductor::b2b_gemm` is one Triton kernel on CUDA that keeps the first product on the chip, and two products on other
devices. The function is spelled as text, see `eductor.ops.middle`.
"""

from __future__ import annotations

import torch

from eductor.ops import middle as middles
from eductor.ops.definition import define
from eductor.ops.launching import can_launch

TILE = 64
"""Rows and columns of both products in one program's tile.

With 128 rows of two bytes and four warps, Triton 3.6 gives wrong results on Hopper for chained products.
"""

Bias = torch.Tensor | None


def _check(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, inner: Bias, outer: Bias, middle: str) -> None:
    operands = [t for t in (a, b, c, inner, outer) if t is not None]
    shapes = ", ".join(str(list(t.shape)) for t in operands)
    wanted = "b2b_gemm takes a[M, K], b[K, N], c[N, P], inner_bias[N] and outer_bias[P]"
    if [t.dim() for t in (a, b, c)] != [2, 2, 2] or any(t is not None and t.dim() != 1 for t in (inner, outer)):
        raise ValueError(f"{wanted}; their shapes are {shapes}")
    biases = [(t, of) for t, of in ((inner, b), (outer, c)) if t is not None]
    if a.shape[1] != b.shape[0] or b.shape[1] != c.shape[0] or any(t.shape[0] != of.shape[1] for t, of in biases):
        raise ValueError(f"{wanted}; their shapes are {shapes}")
    if any(t.dtype != a.dtype for t in operands) or not a.dtype.is_floating_point:
        raise ValueError("b2b_gemm takes operands of one floating-point dtype")
    ends = middles.dtypes(middles.read(middle), a.dtype)[-1]
    if ends != a.dtype and a.dtype is not torch.float64:
        raise ValueError(f"b2b_gemm: its middle ends in {ends}, but its operands are {a.dtype}")


def _by_aten(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, inner: Bias, outer: Bias, middle: str) -> torch.Tensor:
    _check(a, b, c, inner, outer, middle)
    return _product(middles.computed(middles.read(middle), _product(a, b, inner)), c, outer)


def _product(left: torch.Tensor, right: torch.Tensor, bias: Bias) -> torch.Tensor:
    return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)


def _on_cuda(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, inner: Bias, outer: Bias, middle: str) -> torch.Tensor:
    if not can_launch(*(t for t in (a, b, c, inner, outer) if t is not None)):
        return _by_aten(a, b, c, inner, outer, middle)
    _check(a, b, c, inner, outer, middle)
    from eductor.ops.b2b_gemm_kernel import launch

    return launch(a, b, c, inner, outer, middle)


def _fake(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, inner: Bias, outer: Bias, middle: str) -> torch.Tensor:
    _check(a, b, c, inner, outer, middle)
    return a.new_empty((a.shape[0], c.shape[1]))


b2b_gemm = define(
    "b2b_gemm(Tensor a, Tensor b, Tensor c, Tensor? inner_bias, Tensor? outer_bias, str middle) -> Tensor",
    _by_aten,
    on_cuda=_on_cuda,
    fake=_fake,
    tags=(torch.Tag.flexible_layout,),
)
"""a[M, K], b[K, N], c[N, P], inner_bias[N], outer_bias[P] -> [M, P], contiguous."""
