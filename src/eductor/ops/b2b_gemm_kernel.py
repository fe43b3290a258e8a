"""`eductor::b2b_gemm` as a Triton kernel: each program computes one tile of the result; the first product stays on the chip."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from eductor.ops import middle as middles
from eductor.ops.b2b_gemm import TILE
from eductor.ops.launching import float32_precision


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    # For small x the exponential form loses digits; for large x it saturates at 1, as it should.
    square = x * x
    series = x * (1.0 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    size = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(square < 0.09, series, tl.where(x < 0.0, -size, size))


@triton.jit  # type: ignore[untyped-decorator]
def _step(NAME: tl.constexpr, x, y, NUMBER: tl.constexpr):  # type: ignore[no-untyped-def]
    if NAME == "number":
        result = tl.full((1, 1), NUMBER, tl.float32)
    elif NAME == "add":
        result = x + y
    elif NAME == "sub":
        result = x - y
    elif NAME == "mul":
        result = x * y
    elif NAME == "div":
        result = x / y
    elif NAME == "abs":
        result = tl.abs(x)
    elif NAME == "neg":
        result = -x
    elif NAME == "relu":
        result = tl.where(x < 0.0, 0.0, x)  # a maximum would lose NaN
    elif NAME == "square":
        result = x * x
    elif NAME == "cube":
        result = x * x * x
    elif NAME == "exp":
        result = tl.exp(x)
    elif NAME == "erf":
        result = tl.erf(x)
    elif NAME == "sqrt":
        result = tl.sqrt(x)
    elif NAME == "rsqrt":
        result = 1.0 / tl.sqrt(x)
    elif NAME == "sigmoid":
        result = 1.0 / (1.0 + tl.exp(-x))
    elif NAME == "silu":
        result = x / (1.0 + tl.exp(-x))
    elif NAME == "tanh":
        result = _tanh(x)
    elif NAME == "gelu":
        result = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        result = 0.5 * x * (1.0 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    else:
        tl.static_assert(NAME == "cast", "a step that this kernel does not support")
        result = x
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(x, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    if DTYPE == "float16":
        x = x.to(tl.float16).to(tl.float32)
    elif DTYPE == "bfloat16":
        x = x.to(tl.bfloat16).to(tl.float32)
    return x


@triton.jit  # type: ignore[untyped-decorator]
def _b2b_gemm(  # type: ignore[no-untyped-def]
    a,
    b,
    c,
    inner_bias,
    outer_bias,
    out,
    M,
    N,
    K,
    P,
    a_m,
    a_k,
    b_k,
    b_n,
    c_n,
    c_p,
    inner_n,
    outer_p,
    HAS_INNER_BIAS: tl.constexpr,
    HAS_OUTER_BIAS: tl.constexpr,
    NAMES: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    NUMBERS: tl.constexpr,
    DTYPES: tl.constexpr,
    COUNT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    tiles_p = tl.cdiv(P, BLOCK_P)
    program = tl.program_id(0)
    # 64-bit offsets: this kernel is for many rows.
    m = ((program // tiles_p) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    p = ((program % tiles_p) * BLOCK_P + tl.arange(0, BLOCK_P)).to(tl.int64)

    total = tl.zeros((BLOCK_M, BLOCK_P), dtype=tl.float32)
    for start_n in range(0, N, BLOCK_N):
        n = (start_n + tl.arange(0, BLOCK_N)).to(tl.int64)
        inner = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start_k in range(0, K, BLOCK_K):
            k = (start_k + tl.arange(0, BLOCK_K)).to(tl.int64)
            a_tile = tl.load(
                a + m[:, None] * a_m + k[None, :] * a_k, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0
            )
            b_tile = tl.load(
                b + k[:, None] * b_k + n[None, :] * b_n, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0
            )
            inner = tl.dot(a_tile, b_tile, inner, input_precision=PRECISION)
        if HAS_INNER_BIAS:
            inner += tl.load(inner_bias + n * inner_n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        # Round each value to its dtype, as between separate kernels.
        values = (inner.to(out.dtype.element_ty).to(tl.float32),)
        for i in tl.static_range(COUNT):
            value = _step(tl.constexpr(NAMES[i]), values[LEFT[i]], values[RIGHT[i]], tl.constexpr(NUMBERS[i]))
            values += (_rounded(value, tl.constexpr(DTYPES[i])),)  # type: ignore[assignment]
        # Beyond the last column the function may return anything, even infinity.
        left = tl.where(n[None, :] < N, values[COUNT], 0.0).to(out.dtype.element_ty)
        c_tile = tl.load(c + n[:, None] * c_n + p[None, :] * c_p, mask=(n[:, None] < N) & (p[None, :] < P), other=0.0)
        total = tl.dot(left, c_tile, total, input_precision=PRECISION)
    if HAS_OUTER_BIAS:
        total += tl.load(outer_bias + p * outer_p, mask=p < P, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + m[:, None] * P + p[None, :], total.to(out.dtype.element_ty), mask=(m[:, None] < M) & (p[None, :] < P)
    )


Instruction = tuple[str, int, int, float, str]
"""Operation, indices of its two operands, number, dtype of the result."""


def instructions(text: str, dtype: torch.dtype) -> tuple[Instruction, ...]:
    """The steps of a middle in the kernel's form, in which a number is a value as well."""
    steps = middles.read(text)
    made: list[Instruction] = []
    places = [0]
    for step, rounded in zip(steps, middles.dtypes(steps, dtype)[1:], strict=True):
        operands = []
        for x in step.operands:
            if isinstance(x, float):
                made.append(("number", 0, 0, x, "float32"))
            operands.append(len(made) if isinstance(x, float) else places[x])
        name = "cast" if step.name in middles.CASTS else step.name
        made.append((name, operands[0], operands[-1], 0.0, middles.name_of(rounded)))
        places.append(len(made))
    return tuple(made)


@functools.lru_cache(maxsize=1 << 10)
def constants(text: str, dtype: torch.dtype) -> dict[str, Any]:
    """The middle as the kernel's constants, one tuple for each field, as Triton 3.6 misreads nested tuples."""
    steps = instructions(text, dtype)
    names = ("NAMES", "LEFT", "RIGHT", "NUMBERS", "DTYPES")
    return {name: tuple(step[i] for step in steps) for i, name in enumerate(names)} | {"COUNT": len(steps)}


def launch(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    inner_bias: torch.Tensor | None,
    outer_bias: torch.Tensor | None,
    middle: str,
) -> torch.Tensor:
    """Launches the kernel, for any strides and sizes."""
    (rows, depth), (inner, columns) = a.shape, c.shape
    out = a.new_empty((rows, columns))
    if out.numel() == 0:
        return out
    blocks = {
        name: min(most, max(16, triton.next_power_of_2(size)))
        for name, size, most in (
            ("BLOCK_M", rows, TILE),
            ("BLOCK_N", inner, TILE),
            ("BLOCK_K", depth, 64 if a.element_size() == 2 else 32),
            ("BLOCK_P", columns, TILE),
        )
    }
    grid = (triton.cdiv(rows, blocks["BLOCK_M"]) * triton.cdiv(columns, blocks["BLOCK_P"]),)
    with torch.cuda.device_of(a):
        _b2b_gemm[grid](
            a,
            b,
            c,
            a if inner_bias is None else inner_bias,
            a if outer_bias is None else outer_bias,
            out,
            rows,
            inner,
            depth,
            columns,
            *a.stride(),
            *b.stride(),
            *c.stride(),
            0 if inner_bias is None else inner_bias.stride(0),
            0 if outer_bias is None else outer_bias.stride(0),
            HAS_INNER_BIAS=inner_bias is not None,
            HAS_OUTER_BIAS=outer_bias is not None,
            **constants(middle, a.dtype),
            PRECISION=float32_precision(),
            **blocks,
            # Many programs per multiprocessor hide latency; more stages would reduce their number.
            num_stages=1 if a.element_size() == 2 else 2,
        )
    return out
