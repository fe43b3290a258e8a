"""Graphs with gradients that are called in inference mode: nothing is recorded, as in eager."""

from __future__ import annotations

import pytest
import torch

import eductor


@torch.enable_grad()
def decorated(x, w):
    return (x @ w.t()).relu()


@torch.enable_grad()
def written(x, w):
    x.mul_(w.sum())
    return x.t(), x @ w.t()


def within(x, w):
    with torch.enable_grad():
        y = x @ w.t()
    return y + 1


def left_on(x, w):
    torch.set_grad_enabled(True)
    return x @ w.t(), x


@pytest.mark.parametrize("options", [{"engine": "aten"}, {"profile": "exact"}, {"engine": "inductor"}], ids=str)
@pytest.mark.parametrize("program", [decorated, written, within, left_on])
@pytest.mark.parametrize("is_made_inside", [False, True])
def test_enable_grad_records_nothing(program, options, is_made_inside):
    torch.manual_seed(0)
    weight, given = torch.nn.Parameter(torch.randn(3, 4)), torch.randn(2, 4)

    def called(fn):
        x = given.clone()
        with torch.inference_mode():
            return fn(x.clone() if is_made_inside else x, weight), x

    expected, got = called(program), called(eductor.compile(program, strict=True, **options))
    torch.testing.assert_close(got, expected)
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert (a.requires_grad, a.is_inference()) == (b.requires_grad, b.is_inference())


def test_one_compile_serves_both_modes():
    x, w = torch.randn(2, 4), torch.nn.Parameter(torch.randn(3, 4))
    run = eductor.compile(decorated, engine="aten", strict=True)
    for _ in range(2):
        with torch.no_grad():
            assert run(x, w).requires_grad
        with torch.inference_mode():
            assert not run(x, w).requires_grad
