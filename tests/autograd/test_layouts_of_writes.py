"""In the profile exact, what is written in place is read in its own layout: kernels round by where their rows end."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import eductor

exact = functools.partial(eductor.compile, profile="exact", strict=True)


def pieces_that_do_not_say_what_they_are_of(x):
    a, b = (x * 2).unsafe_chunk(2, dim=1)
    return a.add_(1).sigmoid_() * b.add_(2).sigmoid()


def a_view(x):
    z = (x * 2)[:, 1:12]
    z.add_(1)
    return z.sigmoid()


def a_transposed_view(x):
    z = (x * 2).t()[1:12]
    z.add_(1).sigmoid_()
    return z.exp()


PROGRAMS = (pieces_that_do_not_say_what_they_are_of, a_view, a_transposed_view)


def observed(fn, x):
    leaf = x.requires_grad_()
    leaf.grad = None
    out = fn(leaf)
    out.backward(torch.linspace(-1, 1, out.numel()).view(out.shape))
    return out.detach(), leaf.grad


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_pieces_that_are_written(program, dynamic):
    torch.manual_seed(0)
    compiled = exact(program)
    for rows in (11, 13) if dynamic else (11,):
        x = torch.randn(rows, 14)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        assert all(map(torch.equal, observed(program, x), observed(compiled, x)))


def test_pieces_of_unknown_strides_are_refused():
    program, x = pieces_that_do_not_say_what_they_are_of, torch.randn(11, 14)
    torch._dynamo.mark_dynamic(x, 1)
    with pytest.warns(eductor.EductorWarning, match="with sizes that may change, whose parts are written"):
        got = eductor.compile(program, profile="exact")(x)
    assert torch.equal(got, program(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_recurrent_cells(cell, dynamic):
    torch.manual_seed(0)
    cell = cell(6, 12)

    def step(x):
        state = cell(x)
        return state[0] * state[1] if isinstance(state, tuple) else state * 2

    for rows in (10, 7) if dynamic else (10,):
        x = torch.randn(rows, 6)
        assert all(map(torch.equal, observed(step, x), observed(exact(step, dynamic=dynamic), x)))
