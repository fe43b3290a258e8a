"""relu_nan_to_num: no NaN leaves a relu, infinities do; only for who asks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from both_dialects import DIALECTS, captured, fires, leaf, refuses, result

import eductor
from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.relu_nan_to_num import relu_nan_to_num
from eductor.testing import check_contract

SPECIAL = torch.tensor([1.5, -2.0, 0.0, math.nan, math.inf, -math.inf])
EXPECTED = torch.tensor([1.5, 0.0, 0.0, 0.0, math.inf, 0.0])


def test_contract():
    check_contract(relu_nan_to_num, "pre_grad")


def relu_in_place(x):
    h = x * 1.0
    F.relu(h, inplace=True)
    return h


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.relu(x),
        F.relu,
        lambda x: x.relu(),
        lambda x: F.relu(input=x),
        lambda x: (x * 1.0).relu_(),
        relu_in_place,
    ],
)
def test_no_nan_is_left(program, dtype, dialect):
    x = SPECIAL.to(dtype)
    module = captured(program, [x], dialect)
    ran = run_pass(relu_nan_to_num, "pre_grad", module)
    assert ran.record.changed
    got = result(module, x)
    assert got.dtype is dtype
    assert torch.equal(got, EXPECTED.to(dtype))
    assert not run_pass(relu_nan_to_num, "pre_grad", module).record.changed


def test_numbers_keep_their_gradients():
    x, y = leaf(3, 4), leaf(3, 4)
    y.data.copy_(x)
    module = captured(lambda t: F.relu(t) * 2 + F.relu(t * 3, inplace=True), [x])
    assert run_pass(relu_nan_to_num, "pre_grad", module).record.changed
    result(module, x).sum().backward()
    (F.relu(y) * 2 + F.relu(y * 3)).sum().backward()
    assert torch.equal(x.grad, y.grad)


def test_the_gradient_of_a_nan_is_zero():
    x = SPECIAL.clone().requires_grad_()
    module = captured(lambda t: torch.relu(t), [x])
    run_pass(relu_nan_to_num, "pre_grad", module)
    result(module, x)[:4].sum().backward()
    assert torch.equal(x.grad[:4], torch.tensor([1.0, 0.0, 0.0, 0.0]))


def test_it_writes_what_relu_wrote():
    def program(x):
        x.relu_()
        return x + 1

    function = eductor.compile(program, pipeline="pre_grad(relu_nan_to_num)", engine="aten")
    x = SPECIAL.clone()
    assert torch.equal(function(x), EXPECTED + 1)
    assert torch.equal(x, EXPECTED)


def test_off_unless_asked_for():
    assert torch.relu(SPECIAL)[3].isnan()
    assert eductor.compile(torch.relu, engine="aten")(SPECIAL)[3].isnan()
    assert torch.equal(eductor.compile(torch.relu, engine="aten", enable=["relu_nan_to_num"])(SPECIAL), EXPECTED)


@pytest.mark.parametrize(
    ("because", "program", "x"),
    [
        ("only floating-point", lambda x: torch.relu(x), torch.arange(-2, 2)),
        ("replaced already", lambda x: torch.nan_to_num(x.relu()), SPECIAL),
        ("replaced already", lambda x: x.nan_to_num(0.0).relu() + 1, SPECIAL),
    ],
)
def test_refusals(because, program, x):
    refuses(because, relu_nan_to_num, program, x)


def test_other_users_see_no_nan_either():
    after = fires(relu_nan_to_num, lambda x: (lambda h: h.nan_to_num() + h)(x.relu()), SPECIAL)
    assert after.count("nan_to_num") >= 2
