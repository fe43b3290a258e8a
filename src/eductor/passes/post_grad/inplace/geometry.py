"""Containment and overlap of tensors in memory, as far as their strides prove it for all sizes."""

from __future__ import annotations

from typing import Any

import torch

from eductor.graph.values.meta import hint_of, is_row_major, known_equal, known_true


def covers(whole: torch.Tensor | None, part: torch.Tensor) -> bool:
    """Whether `part`, any view of the same memory, provably contains only elements of the tensor `whole`."""
    if whole is None or whole.dtype != part.dtype or not is_row_major(whole):
        return False
    reach = sum((size - 1) * stride for size, stride in zip(part.shape, part.stride(), strict=True))
    start = part.storage_offset() - whole.storage_offset()
    return known_true(start >= 0) and known_true(start + reach < whole.numel())


def has_no_overlap(tensor: torch.Tensor) -> bool:
    """Whether provably no two elements share memory: each stride exceeds the reach of all smaller ones."""
    dims = [(s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if not known_equal(n, 1)]
    if is_row_major(tensor) or any(known_equal(n, 0) for _, n in dims):
        return True
    if any(hint_of(stride) is None for stride, _ in dims):
        return False
    reach: Any = 0
    for stride, size in sorted(dims, key=lambda dim: hint_of(dim[0])):
        if not known_true(stride > reach):
            return False
        reach = reach + (size - 1) * stride
    return True
