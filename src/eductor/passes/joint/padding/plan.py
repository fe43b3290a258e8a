"""Which dimensions of a matrix product to pad, and why: a function of numbers, without a graph.

Matrix units need each row of a matrix to begin at a multiple of 16 bytes. A row is the contiguous dimension: the last
one of a matrix, the first one of a transposed matrix. So an unaligned size costs time only where the rows of some matrix
have that length, and padding it with zeros pays only where the copies cost less than that time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

import torch

from eductor.cost import VECTOR, Device, Gemm, copy_time, gemm_time, is_bound_by_memory, microseconds
from eductor.graph import No

Dim = Literal["m", "k", "n"]
ORDER: tuple[Dim, ...] = ("k", "n", "m")
"""Of equally fast plans the first one wins: `k` and `n` are row lengths more often than `m`."""

PADDED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

GAIN = 1.1
"""A product is padded if it takes this many times as long as the padded one; less is within the figures' error."""

MEMORY_SHARE = 0.02
"""The copies for one product may take this share of the device's memory."""


class Pads(NamedTuple):
    """By how much each dimension grows."""

    m: int = 0
    k: int = 0
    n: int = 0

    def of(self, *dims: Dim) -> tuple[int, ...]:
        return tuple(getattr(self, dim) for dim in dims)

    def __str__(self) -> str:
        return " and ".join(f"{dim} by {by}" for dim, by in zip(ORDER, self.of(*ORDER), strict=True) if by)


NO_PADS = Pads()


@dataclass(frozen=True, slots=True)
class Matrix:
    """The layout of a factor, and whether padding it fuses."""

    along: Dim
    """The contiguous dimension."""
    step: int
    """Its rows begin at multiples of this many elements."""
    fuses: bool = False
    """Whether the kernel that computes it can write it padded."""


@dataclass(frozen=True, slots=True)
class ProductBias:
    """The bias of a product: its dimensions, others are broadcast; and whether padding it fuses."""

    dims: tuple[Dim, ...]
    fuses: bool = False
    beta: float = 1.0
    alpha: float = 1.0


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """`batch` products of an `m x k` with a `k x n` matrix: everything that the decision depends on."""

    m: int
    k: int
    n: int
    dtype: torch.dtype
    left: Matrix
    right: Matrix
    device: Device
    batch: int = 1
    bias: ProductBias | None = None
    dynamic: frozenset[Dim] = frozenset()
    """Dimensions whose size varies from call to call."""
    copies_result: bool = True
    """Whether restoring the strides of the sliced result takes a copy."""

    def size(self, dim: Dim, pads: Pads = NO_PADS) -> int:
        size: int = getattr(self, dim) + getattr(pads, dim)
        return size

    def gemm(self, pads: Pads = NO_PADS) -> Gemm:
        """The product as computed with these pads. A padded factor is a new tensor, contiguous along the same dimension."""
        unit = self.device.alignment(self.dtype)
        factors = ((self.left, pads.of("m", "k")), (self.right, pads.of("k", "n")))
        steps = [self.size(matrix.along, pads) if any(added) else matrix.step for matrix, added in factors]
        m, k, n = (self.size(dim, pads) for dim in ("m", "k", "n"))
        aligned_factors = all(step % unit == 0 for step in steps)
        return Gemm(m, n, k, self.dtype, self.batch, aligned_factors, aligned_result=n % unit == 0)

    def copies(self, pads: Pads) -> Iterator[int]:
        """The bytes of each tensor that is copied for these pads."""

        def is_padded(*dims: Dim) -> bool:
            return any(pads.of(*dims))

        def bytes_of(*dims: Dim) -> int:
            return math.prod(self.size(dim, pads) for dim in dims) * self.dtype.itemsize

        if is_padded("m", "k") and not self.left.fuses:
            yield self.batch * bytes_of("m", "k")
        if is_padded("k", "n") and not self.right.fuses:
            yield self.batch * bytes_of("k", "n")
        if self.bias is not None and is_padded(*self.bias.dims) and not self.bias.fuses:
            yield bytes_of(*self.bias.dims)
        if self.is_copied(pads):
            yield self.batch * bytes_of("m", "n")

    def is_copied(self, pads: Pads) -> bool:
        """Whether the sliced result is copied: slicing rows off the end of a single matrix leaves the other rows in place."""
        return self.copies_result and bool(pads.n or (pads.m and self.batch > 1))

    def time(self, pads: Pads = NO_PADS) -> float:
        """Seconds of the product with these pads, copies included."""
        return gemm_time(self.gemm(pads), self.device) + sum(copy_time(size, self.device) for size in self.copies(pads))


@dataclass(frozen=True, slots=True)
class PaddingPlan:
    """By how much to pad each dimension, if at all, and why."""

    pads: Pads
    reason: str


Measure = Callable[[MatrixProduct, Pads], tuple[float, float]]
"""Seconds of a product unpadded, and with these pads."""


def plan(
    product: MatrixProduct, *, force: bool = False, memory_share: float = MEMORY_SHARE, measure: Measure | None = None
) -> PaddingPlan:
    """The pads with which a product is fastest. With `force`, every unaligned size is padded, on any device."""
    if product.dtype not in PADDED_DTYPES:
        return PaddingPlan(NO_PADS, f"products in {_name(product.dtype)} need no alignment")
    if not (product.m and product.k and product.n and product.batch):
        return PaddingPlan(NO_PADS, "it has a dimension of size 0")
    unit = VECTOR // product.dtype.itemsize
    short = {dim: by for dim in ORDER if (by := _missing(product, dim, unit))}
    if force:
        return PaddingPlan(
            Pads(**short), "padding is forced" if short else f"no size can be padded to a multiple of {unit}"
        )
    verdict = _may_help(product)
    return _fastest(product, short, memory_share, measure) if verdict else PaddingPlan(NO_PADS, verdict.reason)


def _missing(product: MatrixProduct, dim: Dim, unit: int) -> int:
    """How far a dimension is from the next multiple; 0 where it is dynamic or 1."""
    is_open = dim not in product.dynamic and product.size(dim) > 1
    return -product.size(dim) % unit if is_open else 0


def _may_help(product: MatrixProduct) -> Literal[True] | No:
    """Whether padding can help a product."""
    gemm, device = product.gemm(), product.device
    if device.alignment(product.dtype) == 1:
        return No(f"products in {_name(product.dtype)} need no alignment on {device.name}")
    if gemm.aligned_factors and gemm.aligned_result:
        return No(f"each row of its matrices begins at a multiple of {VECTOR} bytes")
    if is_bound_by_memory(gemm, device):
        return No(f"it is memory-bound: it computes {gemm.flops / gemm.bytes:.3g} flops per byte")
    return True


def _fastest(
    product: MatrixProduct, short: dict[Dim, int], memory_share: float, measure: Measure | None
) -> PaddingPlan:
    if not short:
        return PaddingPlan(NO_PADS, "the unaligned sizes are dynamic or 1, or only strides or offsets are unaligned")
    subsets = (dims for count in range(1, len(short) + 1) for dims in combinations(short, count))
    plans = [Pads(**{dim: short[dim] for dim in dims}) for dims in subsets]
    limit = memory_share * product.device.memory
    fitting = [pads for pads in plans if sum(product.copies(pads)) <= limit]
    if not fitting:
        needed = min(sum(product.copies(pads)) for pads in plans)
        return PaddingPlan(NO_PADS, f"the copies take {_mebibytes(needed)}, and {_mebibytes(limit)} are allowed")
    best = min(fitting, key=product.time)
    now, padded = (product.time(), product.time(best)) if measure is None else measure(product, best)
    how = "" if measure is None else ", as measured"
    times = f"{microseconds(now)} unpadded, {microseconds(padded)} with {best}{how}"
    return (
        PaddingPlan(best, times) if now > GAIN * padded else PaddingPlan(NO_PADS, f"padding gains too little: {times}")
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _mebibytes(size: float) -> str:
    return f"{size / (1 << 20):.3g} MiB"
