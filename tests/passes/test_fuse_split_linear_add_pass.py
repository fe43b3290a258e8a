"""fuse_split_linear_add_pass: a sum of linears of the pieces is a linear of the whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from both_dialects import DIALECTS, compiled, fires, leaf, refuses, run

import eductor
from eductor.passes.pre_grad.fuse_split_linear_add_pass import fuse_split_linear_add_pass as fusion
from eductor.testing import check_contract

M, D, H = 64, 8, 8


def test_contract():
    check_contract(fusion, "pre_grad")


# ------------------------------------------------------------------------------------------------------ what it does


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "take",
    [
        lambda x: x.split([D, D], -1),
        lambda x: x.chunk(2, dim=1),
        lambda x: (x[:, :D], x[:, D:]),
        lambda x: torch.split(x, D, 1),
    ],
)
def test_pieces_in_any_spelling(take, dialect):
    def program(x, v, w, b):
        left, right = take(x)
        return F.linear(left, v, b) + F.linear(right, w, bias=b)

    after = fires(fusion, program, leaf(M, 2 * D), leaf(H, D), leaf(H, D), leaf(H), dialect=dialect)
    assert after.count("linear.default") + after.count("nn.linear(") == 1
    assert "split" not in after


def test_the_order_of_the_sum_is_not_that_of_the_pieces():
    def program(x, w):
        a, b, c = x.split([3, 5, 8], -1)
        return F.linear(c, w[:, 8:]).add(F.linear(a, w[:, :3])) + F.linear(b, w[:, 3:8])

    fires(fusion, program, leaf(M, 16), leaf(H, 16))


def test_a_part_of_the_pieces_and_other_addends():
    def program(x, w, y):
        _, b, c, _ = x.chunk(4, -1)
        return y + F.linear(b, w[0]) + F.linear(c, w[1], y[0]) + 3

    fires(fusion, program, leaf(M, 4 * D), leaf(2, H, D), leaf(M, H))


@pytest.mark.parametrize("shape", [(2 * D,), (2, 32, 2 * D)])
def test_inputs_of_any_rank(shape):
    def program(x, w):
        a, b = x.chunk(2, -1)
        return F.linear(a, w[0]) + F.linear(b, w[1])

    run(fusion, program, leaf(*shape), leaf(2, H, D))
    x, w = leaf(*shape), leaf(2, H, D)
    expected, got = program(x, w), compiled(fusion, program)(x, w)
    torch.testing.assert_close(expected, got)
    assert expected.stride() == got.stride()


def test_shared_weights_are_put_together_twice():
    def program(x, w):
        a, b = x.chunk(2, -1)
        return F.linear(a, w) + F.linear(b, w)

    fires(fusion, program, leaf(M, 2 * D), leaf(H, D))


def test_dynamic_sizes():
    def program(x, v, w):
        a, b = x.chunk(2, -1)
        return F.linear(a, v) + F.linear(b, w)

    v, w = torch.randn(H, D), torch.randn(H, D)
    fast = eductor.compile(program, pipeline="pre_grad(fuse_split_linear_add_pass)", engine="aten", dynamic=True)
    for size in (M, 80, 3):
        x = torch.randn(size, 2 * D)
        torch.testing.assert_close(fast(x, v, w), program(x, v, w))


# ---------------------------------------------------------------------------------------------------- what it refuses


def untouched(program, *inputs):
    assert not run(fusion, program, *inputs).record.changed


def test_what_is_no_plain_sum():
    x, w = torch.randn(M, 2 * D), torch.randn(2, H, D)

    def scaled(x, w):
        a, b = x.chunk(2, -1)
        return torch.add(F.linear(a, w[0]), F.linear(b, w[1]), alpha=2)

    def read_elsewhere(x, w):
        a, b = x.chunk(2, -1)
        first = F.linear(a, w[0])
        return first + F.linear(b, w[1]), first

    def along_the_rows(x, w):
        a, b = x.view(2 * M, D).chunk(2, 0)
        return F.linear(a, w[0]) + F.linear(b, w[1])

    untouched(scaled, x, w)
    untouched(read_elsewhere, x, w)
    refuses("not neighbours", fusion, along_the_rows, x, w)


def test_a_sum_that_broadcasts():
    def program(x, y, w):
        a, b = x.chunk(2, -1)
        return F.linear(a, w[0]) + F.linear(b[:1], w[1])

    untouched(program, torch.randn(M, 2 * D), torch.randn(1, D), torch.randn(2, H, D))


def test_a_write_to_the_input_between():
    def program(x, w):
        h = x * 1
        a, b = h.chunk(2, -1)
        first = F.linear(a, w[0])
        h.mul_(2)
        return first + F.linear(b, w[1])

    refuses("not neighbours", fusion, program, torch.randn(M, 2 * D), torch.randn(2, H, D))


def test_contexts_tell_apart():
    def program(x, w):
        a, b = x.chunk(2, -1)
        first = F.linear(a, w[0])
        with torch.autocast("cpu", torch.bfloat16):
            second = F.linear(b, w[1])
        return first + second.float()

    untouched(program, torch.randn(M, 2 * D), torch.randn(2, H, D))
