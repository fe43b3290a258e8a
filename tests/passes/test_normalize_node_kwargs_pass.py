"""normalize_node_kwargs_pass: one call form, the same program."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from eductor.graph import capture, to_python
from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.call_spellings import normalize_node_kwargs_pass
from eductor.pipeline import f32
from eductor.testing import assert_pass


def line(program, *inputs):
    module = capture(program, inputs, "torch")
    run_pass(normalize_node_kwargs_pass, "pre_grad", module)
    assert run_pass(normalize_node_kwargs_pass, "pre_grad", module).record.changed is False
    return to_python(module.graph)


X = torch.randn(2, 3, 4)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x.permute(0, 2, 1), "torch.permute(l_x_, dims=[0, 2, 1])"),
        (lambda x: x.permute((0, 2, 1)), "torch.permute(l_x_, dims=(0, 2, 1))"),
        (lambda x: torch.sum(x, axis=1, keepdims=True), "torch.sum(l_x_, dim=[1], keepdim=True)"),
        (lambda x: x.sum(axis=1), "torch.sum(l_x_, dim=[1])"),
        (lambda x: torch.add(x, x, alpha=1), "torch.add(l_x_, l_x_)"),
        (lambda x: torch.add(x, other=x, alpha=2), "torch.add(l_x_, l_x_, alpha=2)"),
        (lambda x: torch.cat([x, x], 0), "torch.cat([l_x_, l_x_])"),
        (lambda x: torch.clamp(x, 0.0, 1.0), "torch.clamp(l_x_, min=0.0, max=1.0)"),
        (lambda x: torch.index_add(x, 0, torch.tensor([0]), x[:1]), "index="),
        (lambda x: x.unsqueeze(0), "torch.unsqueeze(l_x_, dim=0)"),
        (lambda x: x.polygamma(1), "torch.polygamma(1, l_x_)"),
    ],
)
def test_forms(program, expected):
    assert expected in line(program, X)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.view(6, 4).add_(1),
        lambda x: F.dropout(x, 0.5, False),
        lambda x: x[:, None, 1:],
        lambda x: 1 / x,
        lambda x: x.to(torch.float16),
        lambda x: F.relu(x, inplace=True),
    ],
)
def test_what_is_no_direct_call_keeps_its_form_and_its_result(program):
    module = capture(program, [X], "torch")
    run_pass(normalize_node_kwargs_pass, "pre_grad", module)
    a, b = X.clone(), X.clone()
    expected, got = program(a), module(b)
    assert torch.equal(expected, got)
    assert torch.equal(a, b)


def test_two_spellings_become_one():
    assert_pass(
        normalize_node_kwargs_pass,
        before=lambda x, y: torch.cat((x, y), axis=1).sum(1),
        after=lambda x, y: torch.sum(torch.cat((x, y), dim=1), dim=[1]),
        inputs=[f32(2, 3), f32(2, 3)],
    )


def test_the_user_of_a_random_stream_sees_the_same_numbers():
    module = capture(lambda x: torch.rand(3, 4) + x.new_zeros(3, 4), [X], "torch")
    run_pass(normalize_node_kwargs_pass, "pre_grad", module)
    torch.manual_seed(1)
    expected = torch.rand(3, 4)
    torch.manual_seed(1)
    assert torch.equal(module(X), expected)
