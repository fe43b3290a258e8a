"""eductor::cut_mm: the first columns of a product, whatever the number of pieces, in memory of its own; its fake."""

from __future__ import annotations

import sys

import pytest
import torch

import eductor
from eductor import ops
from eductor.ops.cut_mm import rows_of_a_piece

cut_mm = torch.ops.eductor.cut_mm
THE_MODULE = sys.modules["eductor.ops.cut_mm"]
MIB = 1 << 20


def operands(height, dtype=torch.float32, width=16):
    return [torch.randn(size).to(dtype) for size in ((height, 7), (7, width), (width,))]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("height", [0, 1, 255, 256, 257, 512, 600])
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_the_first_columns_of_a_product(monkeypatch, height, dtype, biased):
    monkeypatch.setattr(THE_MODULE, "_BYTES", 0)  # pieces of 256 rows
    a, b, bias = operands(height, dtype)
    for left, right in ((a, b), (a.t().contiguous().t(), b.t().contiguous().t())):
        exact = left.double() @ right.double() + (bias.double() if biased else 0)
        got = cut_mm(left, right, 13, bias if biased else None)
        whole = (torch.addmm(bias, left, right) if biased else left @ right)[:, :13]
        assert (got.dtype, got.shape, got.stride()) == (dtype, (height, 13), (13, 1))
        if height:
            error, wanted = ((x.double() - exact[:, :13]).abs().max() for x in (got, whole))
            assert error <= 2 * wanted + 1e-6


@pytest.mark.parametrize(("height", "pieces"), [(1, [1]), (256, [256]), (600, [256, 256, 88])])
def test_pieces_share_a_buffer(monkeypatch, height, pieces):
    monkeypatch.setattr(THE_MODULE, "_BYTES", 0)
    seen = []

    class Products(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.mm:
                seen.append((len(args[0]), (kwargs["out"].data_ptr(), kwargs["out"].untyped_storage().nbytes())))
            return func(*args, **(kwargs or {}))

    a, b, _ = operands(height)
    with Products():
        THE_MODULE._cut_mm(a, b, 13)
    assert [rows for rows, _ in seen] == pieces
    ((_, size),) = {buffer for _, buffer in seen}
    assert size == pieces[0] * 16 * 4


def test_a_piece_is_small_and_fills_a_device():
    assert rows_of_a_piece(30528 * 2) == 512
    assert rows_of_a_piece(256_000 * 4) == 256
    assert rows_of_a_piece(0) % 128 == 0
    for row in range(2, 200_000, 1999):
        rows = rows_of_a_piece(row)
        assert rows % 128 == 0
        assert rows >= 256
        assert rows * row <= 32 * MIB or rows == 256


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row_and_column(bad):
    a, b, _ = operands(300)
    a[280, 3] = bad
    b[2, 15] = bad  # a column that is cut off
    torch.testing.assert_close(cut_mm(a, b, 13), (a @ b)[:, :13], equal_nan=True)
    assert cut_mm(a, b, 13)[:280].isfinite().all()


def test_its_result_is_its_own():
    a, b, _ = operands(300)
    before = a.clone(), b.clone()
    one, two = cut_mm(a, b, 16), cut_mm(a, b, 16)
    assert one.untyped_storage().nbytes() == 300 * 16 * 4
    one.zero_()
    torch.testing.assert_close(two, a @ b)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


@pytest.mark.parametrize("height", [1, 300])
def test_it_is_a_good_operator(height):
    a, b, bias = operands(height)
    for extra in ((), (bias,)):
        torch.library.opcheck(cut_mm.default, (a, b, 13, *extra))
        torch.library.opcheck(cut_mm.default, (a.t().contiguous().t(), b, 16, *extra))


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_the_engines_know_it_with_any_number_of_rows(engine):
    assert ops.cut_mm.cut_mm is cut_mm

    def program(a, b, bias):
        return cut_mm(a * 2, b, b.shape[1] - 3) + 1, cut_mm(a, b, 5, bias).t()

    fn = eductor.compile(program, engine=engine, dynamic=True, strict=True)
    for height, width in ((600, 16), (5, 20)):
        a, b, bias = operands(height, width=width)
        for got, wanted in zip(fn(a, b, bias), program(a, b, bias), strict=True):
            assert got.stride() == wanted.stride()
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
