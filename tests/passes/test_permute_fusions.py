"""linear_permute_fusion, permute_linear_fusion, permute_matmul_fusion: transposed operands and results as they lie."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.graph import capture
from eductor.graph.values.evaluate import propagate
from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.transposed_products import (
    linear_permute_fusion,
    permute_linear_fusion,
    permute_matmul_fusion,
)
from eductor.pipeline import f32
from eductor.testing import assert_pass, assert_refused, check_contract

aten = torch.ops.aten
PASSES = [linear_permute_fusion, permute_linear_fusion, permute_matmul_fusion]


@pytest.mark.parametrize("pass_", PASSES, ids=lambda p: p.name)
def test_contract(pass_):
    check_contract(pass_, "pre_grad")
    assert not pass_.on


SWAPS = [
    lambda x: x.permute(0, 2, 1),
    lambda x: x.permute([0, -1, 1]),
    lambda x: torch.permute(x, dims=(0, 2, 1)),
    lambda x: x.transpose(-2, -1),
    lambda x: torch.transpose(x, dim0=2, dim1=1),
    lambda x: x.mT,
    lambda x: x.swapaxes(1, 2),
    lambda x: x.movedim(2, 1),
]


def made(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def check_fires(pass_, program, given, times=1):
    """The pass fires so many times; values, strides and gradients are as before; a second run changes nothing."""
    module = capture(program, given)
    run = run_pass(pass_, "pre_grad", module)
    assert len(run.record.matches) == times, [r.reason for r in run.record.rejects]
    assert not run_pass(pass_, "pre_grad", module).record.changed
    expected, got = program(*given), module(*given)
    close = 2e-2 if expected.dtype.itemsize < 4 else 1e-5
    torch.testing.assert_close(got, expected, rtol=close, atol=close)
    assert got.stride() == expected.stride()
    for a, b in zip(*(torch.autograd.grad(r.float().sin().sum(), given) for r in (expected, got)), strict=True):
        torch.testing.assert_close(b, a, rtol=10 * close, atol=10 * close)
    return module


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_each_spelling(swap, dtype):
    x, w, b = made((4, 6, 8), (3, 8), (3,), dtype=dtype)
    check_fires(linear_permute_fusion, lambda x, w, b: swap(F.linear(x, w, b)).flatten(1), [x, w, b])
    check_fires(linear_permute_fusion, lambda x, w: swap(F.linear(x, weight=w)).contiguous(), [x, w])
    x, w, b = made((4, 8, 6), (3, 8), (3,), dtype=dtype)
    check_fires(permute_linear_fusion, lambda x, w, b: F.linear(swap(x), w, b), [x, w, b])
    check_fires(permute_linear_fusion, lambda x, w: F.linear(input=swap(x), weight=w), [x, w])
    a, b = made((4, 8, 6), (4, 8, 3), dtype=dtype)
    check_fires(permute_matmul_fusion, lambda a, b: torch.bmm(swap(a.sin()).contiguous(), b), [a, b])


def test_a_batched_product_stays_one():
    module = check_fires(
        permute_matmul_fusion,
        lambda a, b: torch.bmm(a.sin().mT.contiguous(), b.sin().mT.clone(memory_format=torch.contiguous_format)),
        made((4, 8, 6), (4, 3, 8)),
    )
    assert [n.target for n in module.graph.nodes if n.op == "call_function"][-1] is aten.bmm.default


@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        (lambda a, b: a.sin().mT.contiguous() @ b, ((4, 8, 6), (4, 8, 3))),
        (lambda a, b: a.sin().t().contiguous() @ b, ((8, 6), (8, 3))),
        (lambda a, b: torch.mm(a, b.sin().T.contiguous()), ((6, 8), (3, 8))),
        (lambda a, b: a.mT @ b, ((4, 8, 6), (8, 3))),
        (lambda a, b: torch.matmul(b, other=a.mT), ((4, 6, 8), (3, 8))),
        (lambda a, b: a.mT @ b, ((2, 4, 8, 6), (8, 3))),
    ],
)
def test_products(program, shapes):
    check_fires(permute_matmul_fusion, program, made(*shapes))


def test_leading_dims_and_matrices():
    for shape in ((6, 8), (2, 4, 6, 8)):
        check_fires(linear_permute_fusion, lambda x, w, b: F.linear(x, w, b).mT.contiguous(), made(shape, (3, 8), (3,)))
    check_fires(permute_linear_fusion, lambda x, w, b: F.linear(x.mT, w, b), made((2, 4, 8, 6), (3, 8), (3,)))


def test_the_emitted_form():
    def before(x, w, b):
        return F.linear(x, w, b).permute(0, 2, 1).flatten(1)

    def after(x, w, b):
        turned = aten.transpose.int(x, -2, -1)
        expanded = aten.expand.default(w, [4, -1, -1])
        product = aten.matmul.default(expanded, turned)
        bias = aten.unsqueeze.default(b, -1)
        return aten.add.Tensor(product, bias).flatten(1)

    assert_pass(linear_permute_fusion, before, after, [f32(4, 6, 8), f32(3, 8), f32(3)])


def autocast(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, w).mT.flatten(1)


def half_without_gradients(x, w):
    rows = F.linear(x, w)
    with torch.no_grad():
        return rows.mT.flatten(1)


@pytest.mark.parametrize(
    ("pass_", "program", "because"),
    [
        (linear_permute_fusion, lambda x, w: F.linear(x, w).mT, "observable outside"),
        (linear_permute_fusion, lambda x, w: F.linear(x, w).mT.mul_(2).flatten(1), "writes memory"),
        (linear_permute_fusion, lambda x, w: (lambda y: y.mT.flatten(1) + y.sum())(F.linear(x, w)), "also used by"),
        (linear_permute_fusion, autocast, "differ in dtype"),
        (linear_permute_fusion, half_without_gradients, "a barrier separates"),
        (permute_linear_fusion, lambda x, w: F.linear(x[0, :, :6].t(), w[:, :6]), "a matrix is multiplied"),
        (permute_linear_fusion, lambda x, w: (lambda y: F.linear(y, w[:, :6]) + y.sum())(x.mT), "used elsewhere"),
        (permute_matmul_fusion, lambda x, w: (lambda y: y @ w[:, :6].t() + y.sum())(x.mT), "used elsewhere"),
    ],
)
def test_stays(pass_, program, because):
    assert_refused(pass_, program, [f32(4, 6, 8), f32(3, 8)], because)


def test_a_copy_that_autograd_saves_of_an_input_stays():
    module = capture(lambda a, b: torch.bmm(a.mT.contiguous(), b), made((4, 8, 6), (4, 8, 3)))
    record = run_pass(permute_matmul_fusion, "pre_grad", module).record
    assert not record.changed
    assert "while the caller holds the other" in record.rejects[0].reason


@pytest.mark.parametrize(
    "swap", [lambda x: x.permute(2, 0, 1), lambda x: x.transpose(0, 1), lambda x: x.permute(2, 1, 0), lambda x: x + 0]
)
def test_other_permutations_are_no_candidates(swap):
    x, w, b = made((8, 8, 8), (8, 8), (8,))
    for pass_, program in (
        (linear_permute_fusion, lambda x, w, b: swap(F.linear(x, w, b)).flatten(1)),
        (permute_linear_fusion, lambda x, w, b: F.linear(swap(x), w, b)),
        (permute_matmul_fusion, lambda x, w, b: swap(x).contiguous() @ w),
    ):
        assert not run_pass(pass_, "pre_grad", capture(program, [x, w, b])).record.changed


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.columns = nn.Linear(8, 5), nn.Linear(6, 3)

    def forward(self, x):
        wide = self.rows(x).transpose(1, 2).contiguous()
        deep = self.columns(x.transpose(1, 2))
        return torch.bmm(wide.sin(), x), deep.sin(), torch.bmm(x.sin().transpose(1, 2).contiguous(), x)


def test_end_to_end():
    model, x = Model(), torch.randn(4, 6, 8, requires_grad=True)
    recorder = eductor.Recorder()
    compiled = eductor.compile(
        model, enable=[p.name for p in PASSES], engine="aten", instruments=[recorder], strict=True, dynamic=True
    )
    for inputs in (x, torch.randn(5, 6, 8, requires_grad=True)):
        given = [inputs, *model.parameters()]
        expected, got = model(inputs), compiled(inputs)
        for a, b in zip(expected, got, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
            assert a.stride() == b.stride()
        grads = (torch.autograd.grad(sum(map(torch.sum, r)), given) for r in (expected, got))
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-3)
    assert {f"pre_grad/{p.name}" for p in PASSES} <= set(recorder.changed())


@pytest.mark.parametrize("pass_", PASSES, ids=lambda p: p.name)
def test_exported_graphs(pass_):
    model, x = Model(), torch.randn(4, 6, 8)
    expected = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.export(model, (x,)).module()
    propagate(module, [x])
    assert run_pass(pass_, "pre_grad", module).record.changed
    for a, b in zip(expected, module(x), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
