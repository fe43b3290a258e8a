"""quant_lift_up: quantize, then reshape; the same integers in the same layout."""

from __future__ import annotations

import pytest
import torch
from both_dialects import DIALECTS, captured, fires, leaf, refuses, run

from eductor.graph.values.meta import value_of
from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.quant_lift_up import quant_lift_up
from eductor.testing import check_contract

X = torch.randn(2, 3, 4)


def test_contract():
    check_contract(quant_lift_up, "pre_grad")


def quantized(x):
    q = torch.ops.quantized_decomposed.quantize_per_tensor.default(x, 0.05, 3, -128, 127, torch.int8)
    return q.float() * 2


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(6, 4),
        lambda x: x.reshape(2, -1),
        lambda x: x.permute(2, 0, 1),
        lambda x: x.transpose(-1, 0),
        lambda x: x.mT,
        lambda x: x.flatten(1).t(),
        lambda x: x.unsqueeze(0).squeeze(0).movedim(0, 1),
        lambda x: x.permute(2, 0, 1).reshape(4, 6),
    ],
)
def test_lifts(view, dialect):
    after = fires(quant_lift_up, lambda x: quantized(view(x.sin())), leaf(2, 3, 4), dialect=dialect)
    lines = after.splitlines()
    sin = next(i for i, line in enumerate(lines) if "sin" in line)
    assert "quantize_per_tensor" in lines[sin + 1], after


def test_the_values_in_between_are_integers():
    module = captured(lambda x: quantized(x.permute(2, 0, 1)), [X])
    run_pass(quant_lift_up, "pre_grad", module)
    permute = next(n for n in module.graph.nodes if "permute" in n.name)
    assert value_of(permute).dtype is torch.int8


def test_up_to_who_is_used_elsewhere():
    def program(x):
        rows = x.view(6, 4)
        return quantized(rows.t()), rows + 1

    after = fires(quant_lift_up, program, X)
    assert after.index("view") < after.index("quantize_per_tensor") < after.index(".t()"), after


def test_quantized_tensors():
    def program(x):
        return torch.quantize_per_tensor(x.permute(1, 0), 0.1, 2, torch.quint8).dequantize() * 2

    after = fires(quant_lift_up, program, torch.randn(2, 3))
    assert after.index("quantize_per_tensor") < after.index("permute"), after


def test_unknown_sizes():
    fires(quant_lift_up, lambda x: quantized(x.sin().permute(2, 0, 1)), X, dynamic=True)


def write_between(x):
    h = x * 2
    turned = h.mT
    h.add_(1)
    return quantized(turned)


def result_is_returned(x):
    return torch.ops.quantized_decomposed.quantize_per_tensor.default(x.mT, 0.05, 3, -128, 127, torch.int8)


def result_is_written(x):
    q = torch.ops.quantized_decomposed.quantize_per_tensor.default(x.mT, 0.05, 3, -128, 127, torch.int8)
    q.add_(1)
    return q.sum()


def computed_scale(x):
    turned = x.mT
    scale, zero = x.abs().max() / 127, torch.zeros((), dtype=torch.int64)
    q = torch.ops.quantized_decomposed.quantize_per_tensor.tensor(turned, scale, zero, -128, 127, torch.int8)
    return q.sum()


def per_channel(x):
    scale, zero = torch.full((4,), 0.1), torch.zeros(4, dtype=torch.int64)
    q = torch.ops.quantized_decomposed.quantize_per_channel.default(x.mT, scale, zero, 1, -128, 127, torch.int8)
    return q.sum()


@pytest.mark.parametrize(
    ("because", "program"),
    [
        ("may write what is read", write_between),
        ("would be a view", result_is_returned),
        ("would be a view", result_is_written),
        ("are computed", computed_scale),
        ("has its own scale", per_channel),
        ("is used elsewhere", lambda x: (lambda t: quantized(t) + t)(x.mT)),
        ("other strides", lambda x: quantized(x[:, ::2].mT)),
    ],
)
def test_refusals(because, program):
    refuses(because, quant_lift_up, program, X)


def test_nothing_to_lift():
    assert not run(quant_lift_up, lambda x: quantized(x.sin()), X).record.changed
