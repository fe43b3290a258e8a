"""`eductor::dot_compress` as a Triton kernel: the compressed features stay on the chip."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eductor.ops.launching import float32_precision


@triton.jit  # type: ignore[untyped-decorator]
def _dot_compress(  # type: ignore[no-untyped-def]
    x,
    weight,
    out,
    N,
    D,
    K,
    x_b,
    x_n,
    x_d,
    weight_k,
    weight_n,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_k = tl.cdiv(K, BLOCK_K)
    tiles = tl.cdiv(N, BLOCK_N) * tiles_k
    program = tl.program_id(0)
    sample = (program // tiles).to(tl.int64)
    tile = program % tiles
    # 64-bit offsets: a view may have strides as long as the whole batch.
    n = ((tile // tiles_k) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k = ((tile % tiles_k) * BLOCK_K + tl.arange(0, BLOCK_K)).to(tl.int64)
    features = x + sample * x_b

    total = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for start_d in range(0, D, BLOCK_D):
        d = (start_d + tl.arange(0, BLOCK_D)).to(tl.int64)
        compressed = tl.zeros((BLOCK_K, BLOCK_D), dtype=tl.float32)
        for start_n in range(0, N, BLOCK_N):
            row = (start_n + tl.arange(0, BLOCK_N)).to(tl.int64)
            w_tile = tl.load(
                weight + k[:, None] * weight_k + row[None, :] * weight_n,
                mask=(k[:, None] < K) & (row[None, :] < N),
                other=0.0,
            )
            x_tile = tl.load(
                features + row[:, None] * x_n + d[None, :] * x_d,
                mask=(row[:, None] < N) & (d[None, :] < D),
                other=0.0,
            )
            compressed = tl.dot(w_tile, x_tile, compressed, input_precision=PRECISION)
        own = tl.load(
            features + n[:, None] * x_n + d[None, :] * x_d,
            mask=(n[:, None] < N) & (d[None, :] < D),
            other=0.0,
        )
        # Round to the dtype of the features, as between two matmuls.
        total = tl.dot(own, tl.trans(compressed.to(own.dtype)), total, input_precision=PRECISION)
    tl.store(
        out + (sample * N + n[:, None]) * K + k[None, :],
        total.to(out.dtype.element_ty),
        mask=(n[:, None] < N) & (k[None, :] < K),
    )


def launch(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Launches the kernel, for any strides and sizes."""
    samples, features, width = x.shape
    results = weight.shape[0]
    out = x.new_empty((samples, features, results))
    if out.numel() == 0:
        return out
    # Tiles of 64: with 128 rows of two bytes and four warps, Triton 3.6 gives wrong results on Hopper.
    block_n = min(64, max(16, triton.next_power_of_2(features)))
    block_d = min(32, max(16, triton.next_power_of_2(width)))
    block_k = min(64, max(16, triton.next_power_of_2(results)))
    grid = (samples * triton.cdiv(features, block_n) * triton.cdiv(results, block_k),)
    with torch.cuda.device_of(x):
        _dot_compress[grid](
            x,
            weight,
            out,
            features,
            width,
            results,
            *x.stride(),
            *weight.stride(),
            PRECISION=float32_precision(),
            BLOCK_N=block_n,
            BLOCK_D=block_d,
            BLOCK_K=block_k,
            num_stages=2,
        )
    return out
