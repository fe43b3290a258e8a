"""Writes between forward and backward: what eager allows gives eager's gradients, what eager refuses is an error."""

from __future__ import annotations

import pytest
import torch
from saving import FUSING, Saved
from torch import nn
from torch.utils.checkpoint import checkpoint

import eductor

MODIFIED = "modified by an inplace operation"


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def compiled(fn, budget=0, **options):
    return eductor.compile(fn, engine=FUSING, memory_budget=budget, strict=True, **options)


def widened(x, row):
    """The wide value is saved in eager, the row that it is computed from is not."""
    return (x * row.float().exp().expand(64, -1).clone()).sum()


@pytest.mark.parametrize(
    ("budget", "size", "reason"),
    [(1, 8 * 4, "cheaper to save"), (0, 8, "a copy of an input that may be written before the backward")],
    ids=["the least time", "the fewest bytes"],
)
def test_an_input_that_eager_does_not_save_may_be_written(budget, size, reason):
    torch._dynamo.reset()
    x, row, saved = leaf(64, 8), torch.arange(8, dtype=torch.int8), Saved()
    expected = row.float().exp().expand(64, -1)
    out = compiled(widened, budget, instruments=[saved])(x, row)
    row.data.zero_()
    out.backward()
    torch.testing.assert_close(x.grad, expected)
    assert [(entry.bytes, entry.reason) for entry in saved.plan.saved if entry.bytes] == [(size, reason)]


def returned_twice(x, y):
    """`row` is returned, and eager does not save it."""
    row = y.sin()
    return (x * row.exp().expand(64, -1).clone()).sum(), row


def test_an_output_that_eager_does_not_save_may_be_written():
    x, y = leaf(64, 8), torch.randn(8)
    expected = y.sin().exp().expand(64, -1)
    out, row = compiled(returned_twice)(x, y)
    row.zero_()
    out.backward()
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("returned", [lambda y: y, lambda y: y.view(-1)], ids=["itself", "a view"])
def test_an_output_that_eager_saves_must_not_be_written(returned):
    def program(x):
        return returned(x.exp())

    for fn in (program, compiled(program)):
        out = fn(leaf(4, 4))
        out.mul_(2)
        with pytest.raises(RuntimeError, match=MODIFIED):
            out.sum().backward()


@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize(
    "part", [lambda e: e[1:], lambda e: e.view(-1), lambda e: e.detach().t()], ids=["a slice", "a view", "detached"]
)
def test_a_part_of_what_is_saved_must_not_be_written(part, engine):
    def program(x, y):
        e = y.exp()
        return (x * e).sum(), part(e)

    for fn in (program, eductor.compile(program, engine=engine, strict=True)):
        out, seen = fn(leaf(8, 6), torch.randn(8, 6))
        seen.zero_()
        with pytest.raises(RuntimeError, match=MODIFIED):
            out.backward()


def test_an_item_of_a_tuple_that_eager_saves_must_not_be_written():
    def program(x):
        normed = torch.nn.functional.layer_norm(x, (8,))
        return normed.sin().sum(), normed

    for fn in (program, compiled(program)):
        out, normed = fn(leaf(64, 8))
        normed.detach().zero_()
        with pytest.raises(RuntimeError, match=MODIFIED):
            out.backward()


def unsafe_pieces(x, y):
    """Pieces that share memory with an input, though their operator does not call them views."""
    wide = 1
    for piece in torch.unsafe_chunk(y, 8, 1):
        wide = wide * piece.expand(64, -1, -1).sin()
    return (x * wide).sum()


def checkpointed_without_gradient(x, y):
    """Eager holds the result of the region, and not its input."""
    return (x * checkpoint(lambda y: y.sin().exp(), y, use_reentrant=False)).sum()


@pytest.mark.parametrize("budget", [1, 0])
@pytest.mark.parametrize("program", [unsafe_pieces, checkpointed_without_gradient])
def test_an_input_behind_something_else_may_be_written(program, budget):
    x, y = leaf(64, 16, 8), torch.randn(16, 64)
    x, y = (leaf(8, 8), torch.randn(8, 8)) if program is checkpointed_without_gradient else (x, y)
    (expected,) = torch.autograd.grad(program(x, y), x)
    out = compiled(program, budget)(x, y)
    y.zero_()
    out.backward()
    torch.testing.assert_close(x.grad, expected)


def test_a_copy_of_the_input_of_a_checkpointed_region_may_be_written():
    def program(x, p):
        v = x + p
        return checkpoint(torch.relu, v, use_reentrant=False).sum(), v.clone()

    x, p = torch.randn(8, 8), leaf(8, 8)
    out, copied = compiled(program, 1)(x, p)
    copied.detach().zero_()
    out.backward()
    torch.testing.assert_close(p.grad, (x + p > 0).float())


def test_a_parameter_that_changes_before_the_backward_is_an_error_that_says_what_to_do():
    layer = nn.Linear(8, 8, bias=False)

    def program(x):
        return (x @ layer.weight.to(torch.bfloat16)).float().sum()

    x = torch.randn(4, 8, dtype=torch.bfloat16, requires_grad=True)
    out = compiled(program, 1)(x)
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match=rf"(?s){MODIFIED}.*recompute=False"):
        out.backward()
    torch._dynamo.reset()
    out = compiled(program, 1, recompute=False)(x)
    expected = layer.weight.detach().to(torch.bfloat16).sum(1).expand(4, 8)
    with torch.no_grad():
        layer.weight.add_(1)
    out.backward()
    torch.testing.assert_close(x.grad, expected)


def test_frozen_parameters_are_computed_from_again_and_buffers_are_not():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
            self.register_buffer("buffer", torch.randn(8))

        def forward(self, x, which):
            return (x * getattr(self, which).exp().expand(64, -1).clone()).sum()

    for which, size in (("frozen", 0), ("buffer", 8 * 4)):
        torch._dynamo.reset()
        saved = Saved()
        compiled(Scaled(), instruments=[saved])(leaf(64, 8), which).backward()
        assert saved.plan.bytes == size, which
