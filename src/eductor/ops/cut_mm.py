"""`eductor::cut_mm`: the first columns of a matrix product, computed in chunks of rows.

It is `(a @ b + bias)[:, :n].contiguous()`. All chunks share one buffer, so that the whole product is never materialized.
"""

from __future__ import annotations

import torch

from eductor.ops.definition import define

_BYTES = 32 << 20
_FEWEST, _STEP = 256, 128
"""The fewest rows that fill a device; the height of a tile, which keeps each chunk aligned."""


def rows_of_a_piece(row: int) -> int:
    """How many rows of `row` bytes are computed at once."""
    return max(_BYTES // max(row, 1) // _STEP * _STEP, _FEWEST)


def _cut_mm(a: torch.Tensor, b: torch.Tensor, n: int, bias: torch.Tensor | None = None) -> torch.Tensor:
    height, width = a.shape[0], b.shape[1]
    rows = rows_of_a_piece(width * a.element_size())
    result, buffer = a.new_empty(height, n), a.new_empty(min(rows, height), width)
    for piece, cut in zip(a.split(rows), result.split(rows), strict=True):
        product = buffer[: piece.shape[0]]
        if bias is None:
            torch.mm(piece, b, out=product)
        else:
            torch.addmm(bias, piece, b, out=product)
        cut.copy_(product[:, :n])
    return result


def _fake(a: torch.Tensor, b: torch.Tensor, n: int, bias: torch.Tensor | None = None) -> torch.Tensor:
    return a.new_empty(a.shape[0], n)


cut_mm = define("cut_mm(Tensor a, Tensor b, SymInt n, Tensor? bias=None) -> Tensor", _cut_mm, fake=_fake)
