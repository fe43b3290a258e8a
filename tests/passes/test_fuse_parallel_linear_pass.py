"""fuse_parallel_linear_pass: linears of one input become one, where it pays and nobody notices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from both_dialects import DIALECTS, compiled, fires, leaf, reasons, refuses, run
from torch import nn

import eductor
from eductor.passes.pre_grad.fuse_parallel_linear_pass import fuse_parallel_linear_pass as parallel
from eductor.testing import check_contract

D = 16


def test_contract():
    check_contract(parallel, "pre_grad")


def weights(*widths):
    return [leaf(width, D) for width in widths]


# ------------------------------------------------------------------------------------------------------ what it does


@pytest.mark.parametrize("dialect", DIALECTS)
def test_unequal_widths_and_missing_biases(dialect):
    def program(x, a, b, c, d, bias):
        rows = F.linear(x, a), F.linear(x, b, bias), F.linear(x, c), F.linear(x, weight=d)
        return torch.cat([row.tanh() for row in rows], -1)

    after = fires(parallel, program, leaf(4, D), *weights(5, 8, 3, 8), leaf(8), dialect=dialect)
    assert after.count("torch.ops.aten.linear.") == 1
    assert "new_zeros" in after


@pytest.mark.parametrize("shape", [(D,), (4, D), (2, 3, D), (1, D), (1, 1, D)])
def test_inputs_of_any_rank(shape):
    def program(x, *w):
        return sum(F.linear(x, weight).tanh().sum(-1) for weight in w)

    fires(parallel, program, leaf(*shape), *weights(5, 8, 3, 8))


@pytest.mark.parametrize(
    "multiply",
    [
        lambda x, w: x @ w,
        torch.mm,
        lambda x, w: torch.matmul(x, other=w),
        lambda x, w: torch.addmm(w[0], x, w),
    ],
)
def test_other_products(multiply):
    def program(x, *w):
        return torch.cat([multiply(x, weight).tanh() for weight in w], 1)

    fires(parallel, program, leaf(4, D), *(leaf(D, n) for n in (5, 8, 3, 8)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_that_leave_keep_strides_and_memory(dtype):
    def program(x, *w):
        return [F.linear(x, weight) for weight in w]

    x, w = torch.randn(1, D, dtype=dtype), [torch.randn(8, D, dtype=dtype) for _ in range(12)]
    with torch.no_grad():
        expected, got = program(x, *w), compiled(parallel, program)(x, *w)
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(a, b)
        assert (a.stride(), a.dtype) == (b.stride(), b.dtype)
    assert len({t.untyped_storage().data_ptr() for t in got}) == len(w)


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t.view(-1).tanh(),
        lambda t: t.add_(1).tanh().view(-1),
        lambda t: t.view(2, 3, 2, 4).transpose(1, 2).tanh().reshape(-1),
        lambda t: torch.as_strided(t, (4,), (2,)),
        lambda t: F.scaled_dot_product_attention(t, t, t).reshape(-1),
    ],
)
def test_strides_of_the_parts_do_not_show(use):
    def program(x, *w):
        return torch.cat([use(F.linear(x, weight)) for weight in w])

    x, w = leaf(2, 3, D), weights(*[8] * 12)
    run(parallel, program, x, *w)
    expected, got = program(x, *w), compiled(parallel, program)(x, *w)
    torch.testing.assert_close(expected, got)
    for a, b in zip(torch.autograd.grad(expected.sum(), w), torch.autograd.grad(got.sum(), w), strict=True):
        torch.testing.assert_close(a, b)


def test_dynamic_sizes():
    def program(x, *w):
        return sum(F.linear(x, weight).tanh().sum(-1) for weight in w)

    w = [torch.randn(n, D) for n in (5, 8, 3, 8)]
    fast = eductor.compile(program, pipeline="pre_grad(fuse_parallel_linear_pass)", engine="aten", dynamic=True)
    for size in (4, 9, 2):
        x = torch.randn(size, D)
        torch.testing.assert_close(fast(x, *w), program(x, *w))


class Block(nn.Module):
    """The projections of a decoder block."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width) for _ in range(2))
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = (self._heads(layer(x)) for layer in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(h.transpose(1, 2).reshape(x.shape))
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def _heads(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def test_in_inference_weights_are_packed_once_and_followed():
    model, x = Block(), torch.randn(1, 1, 64)
    recorder = eductor.Recorder()
    fast = eductor.compile(
        model, pipeline="pre_grad(fuse_parallel_linear_pass)", engine="aten", strict=True, instruments=[recorder]
    )
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        (record,) = [r for r in recorder.records if r.name == "fuse_parallel_linear_pass"]
        assert len(record.matches) == 2, record.rejects
        model.k.weight.mul_(2)
        torch.testing.assert_close(fast(x), model(x))
        model.load_state_dict(Block().state_dict())
        torch.testing.assert_close(fast(x), model(x))


def test_in_training_a_block_is_as_in_eager():
    model, x = Block(), torch.randn(2, 8, 64, requires_grad=True)
    fast = eductor.compile(model, pipeline="pre_grad(fuse_parallel_linear_pass)", engine="aten", strict=True)
    inputs = [x, *model.parameters()]
    expected, got = (torch.autograd.grad(f(x).square().sum(), inputs) for f in (model, fast))
    torch.testing.assert_close(expected, got, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------- what it refuses


def test_weights_that_are_written_between():
    def program(x, w):
        v = w * 1
        rows = []
        for _ in range(4):
            rows.append(F.linear(x, v).tanh())
            v.mul_(2)
        return torch.cat(rows, 1)

    refuses("may write what is read", parallel, program, torch.randn(4, D), torch.randn(8, D))


def test_a_member_that_depends_on_another_one():
    def program(x, w):
        first = F.linear(x, w)
        return first + F.linear(x, first.t() @ x)

    refuses("is computed from", parallel, program, torch.randn(8, D), torch.randn(D, D)[:8].contiguous() @ torch.eye(D))


def test_mixed_dtypes_and_contexts():
    def mixed(x, v, w):
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, v).tanh(), F.linear(x, w).tanh()

    def apart(x, v, w):
        first = F.linear(x, v).tanh()
        with torch.no_grad():
            second = F.linear(x, w).tanh()
        return first, second

    x, v, w = torch.randn(4, D), torch.randn(8, D), torch.randn(8, D)
    refuses("differ", parallel, mixed, x, v, w.bfloat16())
    refuses("differs", parallel, apart, x.requires_grad_(), v, w)


def test_gradients_from_different_outputs():
    refuses(
        "gradients from different outputs",
        parallel,
        lambda x, *w: [F.linear(x, weight).tanh() for weight in w],
        leaf(4, D),
        *weights(8, 8, 8, 8),
    )


def test_a_bias_that_broadcasts():
    def program(x, v, w, b):
        return F.linear(x, v, b).tanh() + F.linear(x, w, b).tanh()

    refuses("its bias", parallel, program, torch.randn(4, D), torch.randn(8, D), torch.randn(8, D), torch.randn(1))


def test_the_reason_says_the_figures():
    def program(x, v, w):
        return F.linear(x, v).tanh() + F.linear(x, w).tanh()

    ran = run(parallel, program, torch.randn(1, 256), torch.randn(256, 256), torch.randn(256, 256))
    assert any("saves" in reason and "us and costs" in reason for reason in reasons(ran))
