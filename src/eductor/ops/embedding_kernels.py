"""`eductor::lce` and `eductor::dot_compress` as Triton kernels: each program computes one tile of one sample's result."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eductor.ops.launching import float32_precision
from eductor.ops.tiles import block, load, load_vector, places, store


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
    m = places((tile // tiles_d) * BLOCK_M, BLOCK_M)
    d = places((tile % tiles_d) * BLOCK_D, BLOCK_D)

    total = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start in range(0, N, BLOCK_N):
        n = places(start, BLOCK_N)
        w_tile = load(weight, m, M, weight_m, n, N, weight_n)
        x_tile = load(x + sample * x_b, n, N, x_n, d, D, x_d)
        total = tl.dot(w_tile, x_tile, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += load_vector(bias, m, M, bias_m)[:, None]
    if IS_RELU:
        total = tl.where(total < 0.0, 0.0, total)  # a maximum would lose NaN
    store(out + sample * M * D, total, m, M, d, D)


def launch_lce(weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    """Launches the kernel, for any strides and sizes; flattens the leading dims of `x`."""
    results, features = weight.shape
    width = x.shape[-1]
    out = x.new_empty((*x.shape[:-2], results, width))
    if out.numel() == 0:
        return out
    samples = x.reshape(out.numel() // (results * width), features, width)
    block_m, block_n, block_d = block(results, 64), block(features, 32), block(width, 128)
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
    n = places((tile // tiles_k) * BLOCK_N, BLOCK_N)
    k = places((tile % tiles_k) * BLOCK_K, BLOCK_K)
    features = x + sample * x_b

    total = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for start_d in range(0, D, BLOCK_D):
        d = places(start_d, BLOCK_D)
        compressed = tl.zeros((BLOCK_K, BLOCK_D), dtype=tl.float32)
        for start_n in range(0, N, BLOCK_N):
            row = places(start_n, BLOCK_N)
            w_tile = load(weight, k, K, weight_k, row, N, weight_n)
            x_tile = load(features, row, N, x_n, d, D, x_d)
            compressed = tl.dot(w_tile, x_tile, compressed, input_precision=PRECISION)
        own = load(features, n, N, x_n, d, D, x_d)
        # Round to the dtype of the features, as between two matmuls.
        total = tl.dot(own, tl.trans(compressed.to(own.dtype)), total, input_precision=PRECISION)
    store(out + sample * N * K, total, n, N, k, K)


def launch_dot_compress(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Launches the kernel, for any strides and sizes; the compressed features stay on the chip."""
    samples, features, width = x.shape
    results = weight.shape[0]
    out = x.new_empty((samples, features, results))
    if out.numel() == 0:
        return out
    # Tiles of 64: with 128 rows of two bytes and four warps, Triton 3.6 gives wrong results on Hopper.
    block_n, block_d, block_k = block(features, 64), block(width, 32), block(results, 64)
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
