"""`eductor::b2b_gemm` as a Triton kernel: each program computes one tile of the result; the first product stays on the chip."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from eductor.ops import middle as middles
from eductor.ops.b2b_gemm import TILE, Bias
from eductor.ops.launching import float32_precision
from eductor.ops.tiles import block, load, load_vector, places, store


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
    m = places((program // tiles_p) * BLOCK_M, BLOCK_M)
    p = places((program % tiles_p) * BLOCK_P, BLOCK_P)

    total = tl.zeros((BLOCK_M, BLOCK_P), dtype=tl.float32)
    for start_n in range(0, N, BLOCK_N):
        n = places(start_n, BLOCK_N)
        inner = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start_k in range(0, K, BLOCK_K):
            k = places(start_k, BLOCK_K)
            a_tile = load(a, m, M, a_m, k, K, a_k)
            b_tile = load(b, k, K, b_k, n, N, b_n)
            inner = tl.dot(a_tile, b_tile, inner, input_precision=PRECISION)
        if HAS_INNER_BIAS:
            inner += load_vector(inner_bias, n, N, inner_n)[None, :]
        # Round each value to its dtype, as between separate kernels.
        values = (inner.to(out.dtype.element_ty).to(tl.float32),)
        for i in tl.static_range(COUNT):
            value = _step(tl.constexpr(NAMES[i]), values[LEFT[i]], values[RIGHT[i]], tl.constexpr(NUMBERS[i]))
            values += (_rounded(value, tl.constexpr(DTYPES[i])),)  # type: ignore[assignment]
        # Beyond the last column the function may return anything, even infinity.
        left = tl.where(n[None, :] < N, values[COUNT], 0.0).to(out.dtype.element_ty)
        c_tile = load(c, n, N, c_n, p, P, c_p)
        total = tl.dot(left, c_tile, total, input_precision=PRECISION)
    if HAS_OUTER_BIAS:
        total += load_vector(outer_bias, p, P, outer_p)[None, :]
    store(out, total, m, M, p, P)


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


def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, inner: Bias, outer: Bias, middle: str) -> torch.Tensor:
    """Launches the kernel, for any strides and sizes."""
    (rows, depth), (width, columns) = a.shape, c.shape
    out = a.new_empty((rows, columns))
    if out.numel() == 0:
        return out
    blocks = {
        "BLOCK_M": block(rows, TILE),
        "BLOCK_N": block(width, TILE),
        "BLOCK_K": block(depth, 64 if a.element_size() == 2 else 32),
        "BLOCK_P": block(columns, TILE),
    }
    grid = (triton.cdiv(rows, blocks["BLOCK_M"]) * triton.cdiv(columns, blocks["BLOCK_P"]),)
    with torch.cuda.device_of(a):
        _b2b_gemm[grid](
            a,
            b,
            c,
            a if inner is None else inner,
            a if outer is None else outer,
            out,
            rows,
            width,
            depth,
            columns,
            *a.stride(),
            *b.stride(),
            *c.stride(),
            0 if inner is None else inner.stride(0),
            0 if outer is None else outer.stride(0),
            HAS_INNER_BIAS=inner is not None,
            HAS_OUTER_BIAS=outer is not None,
            **constants(middle, a.dtype),
            PRECISION=float32_precision(),
            **blocks,
            # Many programs per multiprocessor hide latency; more stages would reduce their number.
            num_stages=1 if a.element_size() == 2 else 2,
        )
    return out
