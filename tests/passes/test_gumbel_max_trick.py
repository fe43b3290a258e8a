"""apply_gumbel_max_trick_pass: the same picks from the same draws, without the softmax."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from both_dialects import DIALECTS, captured, fires, refuses, result

import eductor
from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.apply_gumbel_max_trick_pass import apply_gumbel_max_trick_pass
from eductor.testing import check_contract


def test_contract():
    check_contract(apply_gumbel_max_trick_pass, "pre_grad")


def gpt_fast(x):
    p = torch.softmax(x / 0.8, dim=-1)
    q = torch.empty_like(p).exponential_(1)
    return torch.argmax(p / q, dim=-1, keepdim=True)


def without_a_rate(x):
    p = F.softmax(x, dim=1)
    return torch.argmax(p / torch.empty_like(p).exponential_(), dim=1)


def by_keywords(x):
    p = torch.softmax(input=x, dim=-1, dtype=torch.float64)
    q = torch.empty(5, 50, dtype=torch.float64).exponential_(lambd=1.0)
    return torch.argmax(input=torch.div(p, q), dim=-1)


def in_place(x):
    p = x.softmax(-1)
    q = torch.empty_like(p)
    q.exponential_()
    return p.div_(q).argmax(dim=-1)


def columns(x):
    p = x.softmax(0)
    return (p / torch.empty_like(p).exponential_()).argmax(0)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("program", [gpt_fast, without_a_rate, by_keywords, in_place, columns])
def test_the_same_picks(program, dialect):
    x = torch.randn(5, 50) * 3
    module = captured(program, [x], dialect)
    ran = run_pass(apply_gumbel_max_trick_pass, "pre_grad", module)
    assert ran.record.changed, ran.record.rejects
    assert "softmax" not in ran.after
    assert not run_pass(apply_gumbel_max_trick_pass, "pre_grad", module).record.changed
    for seed in range(20):
        torch.manual_seed(seed)
        expected, after = program(x.clone()), torch.rand(3)
        torch.manual_seed(seed)
        assert torch.equal(result(module, x.clone()), expected)
        assert torch.equal(torch.rand(3), after)


def test_rows_that_have_no_softmax():
    """A NaN or an infinity makes the whole row NaN, of which the first is picked; minus infinity is a probability of 0."""
    x = torch.randn(5, 50)
    x[0, 7], x[1, 3], x[2, :] = math.nan, math.inf, -math.inf
    x[3, 1:] = -math.inf
    module = captured(gpt_fast, [x])
    run_pass(apply_gumbel_max_trick_pass, "pre_grad", module)
    torch.manual_seed(1)
    expected = gpt_fast(x)
    torch.manual_seed(1)
    assert torch.equal(result(module, x), expected)
    assert expected[:4].flatten().tolist() == [0, 0, 0, 0]


def test_the_distribution():
    x = torch.tensor([0.0, 1.0, 2.0, -1.0]).repeat(20_000, 1)
    module = captured(without_a_rate, [x])
    run_pass(apply_gumbel_max_trick_pass, "pre_grad", module)
    counts = torch.bincount(result(module, x), minlength=4) / 20_000
    torch.testing.assert_close(counts, x[0].softmax(0), rtol=0.1, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    fires(apply_gumbel_max_trick_pass, gpt_fast, torch.randn(5, 50, dtype=dtype))


def test_unknown_sizes():
    fires(apply_gumbel_max_trick_pass, without_a_rate, torch.randn(5, 50), dynamic=True)


def another_dimension(x):
    p = torch.softmax(x, 0)
    return torch.argmax(p / torch.empty_like(p).exponential_(), -1)


def another_rate(x):
    p = torch.softmax(x, -1)
    return torch.argmax(p / torch.empty_like(p).exponential_(0.5), -1)


def not_drawn(x):
    return torch.argmax(torch.softmax(x, -1) / x.exp(), -1)


def drawn_after_use(x):
    p, q = torch.softmax(x, -1), torch.ones(5, 50)
    ratio = p / q
    q.exponential_()
    return torch.argmax(ratio, -1), q


def draws_are_changed(x):
    p = torch.softmax(x, -1)
    q = torch.empty_like(p).exponential_()
    q.clamp_(min=0.5)
    return torch.argmax(p / q, -1)


def logits_are_written(x):
    h = x * 2
    p = torch.softmax(h, -1)
    h.zero_()
    return torch.argmax(p / torch.empty_like(p).exponential_(), -1), h


def softmax_is_returned(x):
    p = torch.softmax(x, -1)
    return torch.argmax(p / torch.empty_like(p).exponential_(), -1), p


def quotient_is_returned(x):
    p = torch.softmax(x, -1)
    ratio = p / torch.empty_like(p).exponential_()
    return torch.argmax(ratio, -1), ratio


def one_row_of_draws(x):
    return torch.argmax(torch.softmax(x, -1) / torch.empty(50).exponential_(), -1)


def of_all_rows(x):
    p = torch.softmax(x, -1)
    return torch.argmax(p / torch.empty_like(p).exponential_())


def half_draws(x):
    p = torch.softmax(x, -1)
    return torch.argmax(p / torch.empty(5, 50, dtype=torch.float16).exponential_(), -1)


@pytest.mark.parametrize(
    ("because", "program"),
    [
        ("another dimension", another_dimension),
        ("another dimension", of_all_rows),
        ("rate of the draws", another_rate),
        ("not known to be drawn", not_drawn),
        ("not known to be drawn", drawn_after_use),
        ("may write what is read", draws_are_changed),
        ("may write what is read", logits_are_written),
        ("needs the softmax as well", softmax_is_returned),
        ("is used elsewhere", quotient_is_returned),
        ("do not have the shape", one_row_of_draws),
        ("can be zero", half_draws),
    ],
)
def test_refusals(because, program):
    refuses(because, apply_gumbel_max_trick_pass, program, torch.randn(5, 50))


def test_it_must_pay():
    """Without fusion, what is saved is spent on kernels."""
    recorder = eductor.Recorder()
    options = {"pipeline": "pre_grad(apply_gumbel_max_trick_pass)", "engine": "aten", "instruments": [recorder]}
    eductor.pre_grad_passes(captured(gpt_fast, [torch.randn(5, 50)]), options=options)
    assert "the engine does not fuse elementwise calls" in recorder.records[0].rejects[0].reason
