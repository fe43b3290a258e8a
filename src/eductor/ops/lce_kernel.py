"""`eductor::lce` as a Triton kernel: each program computes one tile of one sample's result."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eductor.ops.launching import float32_precision


@triton.jit  # type: ignore[untyped-decorator]
def _lce(  # type: ignore[no-untyped-def]
    weight,
    x,
    bias,
    out,
    M,
    N,
    D,
    weight_m,
    weight_n,
    x_b,
    x_n,
    x_d,
    bias_m,
    HAS_BIAS: tl.constexpr,
    IS_RELU: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tiles_d = tl.cdiv(D, BLOCK_D)
    tiles = tl.cdiv(M, BLOCK_M) * tiles_d
    program = tl.program_id(0)
    sample = (program // tiles).to(tl.int64)
    tile = program % tiles
    # 64-bit offsets: a view may have strides as long as the whole batch.
    m = ((tile // tiles_d) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    d = ((tile % tiles_d) * BLOCK_D + tl.arange(0, BLOCK_D)).to(tl.int64)

    total = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start in range(0, N, BLOCK_N):
        n = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        w_tile = tl.load(
            weight + m[:, None] * weight_m + n[None, :] * weight_n,
            mask=(m[:, None] < M) & (n[None, :] < N),
            other=0.0,
        )
        x_tile = tl.load(
            x + sample * x_b + n[:, None] * x_n + d[None, :] * x_d,
            mask=(n[:, None] < N) & (d[None, :] < D),
            other=0.0,
        )
        total = tl.dot(w_tile, x_tile, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + m * bias_m, mask=m < M, other=0.0).to(tl.float32)[:, None]
    if IS_RELU:
        total = tl.where(total < 0.0, 0.0, total)  # a maximum would lose NaN
    tl.store(
        out + (sample * M + m[:, None]) * D + d[None, :],
        total.to(out.dtype.element_ty),
        mask=(m[:, None] < M) & (d[None, :] < D),
    )


def launch(weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    """Launches the kernel, for any strides and sizes; flattens the leading dims of `x`."""
    results, features = weight.shape
    width = x.shape[-1]
    out = x.new_empty((*x.shape[:-2], results, width))
    if out.numel() == 0:
        return out
    samples = x.reshape(out.numel() // (results * width), features, width)
    block_m = min(64, max(16, triton.next_power_of_2(results)))
    block_n = min(32, max(16, triton.next_power_of_2(features)))
    block_d = min(128, max(16, triton.next_power_of_2(width)))
    grid = (samples.shape[0] * triton.cdiv(results, block_m) * triton.cdiv(width, block_d),)
    with torch.cuda.device_of(x):
        _lce[grid](
            weight,
            samples,
            weight if bias is None else bias,
            out,
            results,
            features,
            width,
            *weight.stride(),
            *samples.stride(),
            0 if bias is None else bias.stride(0),
            HAS_BIAS=bias is not None,
            IS_RELU=activation == "relu",
            PRECISION=float32_precision(),
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_D=block_d,
            num_stages=2,
        )
    return out
