"""Writes between forward and backward: what eager allows gives eager's gradients, what eager refuses is an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import eductor
from eductor.partition import Plan

FUSING = eductor.engines.Engine("fusing", eductor.engines.ATEN.compile, fuses=True)
"""Priced as if pointwise operators cost nothing, so that all of them are computed again; run by ATen."""

MODIFIED = "modified by an inplace operation"


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class Saved(eductor.Instrument):
    """The plan of the last graph."""

    wants_details = True

    def after_stage(self, run):
        if run.name == "partition":
            self.plan = Plan.from_json(run.facts["plan"])


def compiled(fn, budget=0, **options):
    return eductor.compile(fn, engine=FUSING, memory_budget=budget, strict=True, **options)


def widened(x, row):
    """The wide value is saved in eager, the row that it is computed from is not."""
    return (x * row.float().exp().expand(64, -1).clone()).sum()


@pytest.mark.parametrize(
    ("budget", "size", "reason"),
    [(1, 8 * 4, "cheaper to keep"), (0, 8, "a copy of an input that may be written before the backward")],
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
