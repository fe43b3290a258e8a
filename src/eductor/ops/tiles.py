"""Tiles of matrices, for Triton kernels whose programs compute one tile of the result each."""

from __future__ import annotations

import triton
import triton.language as tl


def block(size: int, most: int) -> int:
    """The length of a tile along a dimension of a size."""
    power: int = triton.next_power_of_2(size)
    return min(most, max(16, power))


@triton.jit  # type: ignore[untyped-decorator]
def places(start, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The indices of a tile, as 64-bit numbers: a view may have strides as long as the whole batch."""
    return (start + tl.arange(0, BLOCK)).to(tl.int64)


@triton.jit
def is_inside(rows, row_count, columns, column_count):  # type: ignore[no-untyped-def]
    return (rows[:, None] < row_count) & (columns[None, :] < column_count)


@triton.jit
def load(matrix, rows, row_count, row_stride, columns, column_count, column_stride):  # type: ignore[no-untyped-def]
    """A tile of a matrix, with zeros outside of it."""
    offsets = rows[:, None] * row_stride + columns[None, :] * column_stride
    return tl.load(matrix + offsets, mask=is_inside(rows, row_count, columns, column_count), other=0.0)


@triton.jit
def load_vector(vector, indices, count, stride):  # type: ignore[no-untyped-def]
    """A part of a vector, in the precision of the accumulators."""
    return tl.load(vector + indices * stride, mask=indices < count, other=0.0).to(tl.float32)


@triton.jit
def store(matrix, tile, rows, row_count, columns, column_count):  # type: ignore[no-untyped-def]
    """Stores a tile of a contiguous matrix, in its dtype."""
    offsets = rows[:, None] * column_count + columns[None, :]
    mask = is_inside(rows, row_count, columns, column_count)
    tl.store(matrix + offsets, tile.to(matrix.dtype.element_ty), mask=mask)
