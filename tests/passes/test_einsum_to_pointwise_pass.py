"""einsum_to_pointwise_pass: products of a vector and a matrix for each sample, by what they compute."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import eductor
from eductor.graph import capture
from eductor.graph.values.evaluate import propagate
from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.einsum_to_pointwise_pass import einsum_to_pointwise_pass
from eductor.pipeline import bf16, f32
from eductor.testing import assert_refused, check_contract

SIZES = {"a": 2, "b": 5, "i": 6, "j": 4, "o": 3}


def test_contract():
    check_contract(einsum_to_pointwise_pass, "pre_grad")
    assert not einsum_to_pointwise_pass.on


def operands(equation, dtype=torch.float64):
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    return [torch.randn([SIZES[c] for c in term], dtype=dtype, requires_grad=True) for term in terms]


@pytest.mark.parametrize(
    "equation",
    [
        "abi,abio->abo",
        "bi,bio->bo",
        "bio,bi->bo",
        "bo,bio->bi",
        "abij,abijo->abo",
        "ai,abio->abo",
        "b i , b i o -> b o",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fires(equation, dtype):
    given = operands(equation, dtype)
    module = capture(lambda x, w: torch.einsum(equation, x, w) + 1, given)
    run = run_pass(einsum_to_pointwise_pass, "pre_grad", module)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    assert not run_pass(einsum_to_pointwise_pass, "pre_grad", module).record.changed
    expected, got = torch.einsum(equation, *given) + 1, module(*given)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    for a, b in zip(*(torch.autograd.grad(r.sin().sum(), given) for r in (expected, got)), strict=True):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize(
    ("equation", "because"),
    [
        ("abi,io->abo", "not a product of a vector"),
        ("bi,bi->b", "not a product of a vector"),
        ("abi,bio->abo", "not a product of a vector"),
        ("bi,bio->bio", "not a product of a vector"),
        ("bi,bio->b", "not a product of a vector"),
        ("bi,bio->ob", "another order"),
        ("ib,bio->bo", "another order"),
        ("bb,bio->bo", "occurs twice"),
        ("...i,...io->...o", "a letter for each dim"),
        ("bi,bio", "a letter for each dim"),
    ],
)
def test_stays(equation, because):
    sizes = dict.fromkeys("abio", 4)
    terms = equation.partition("->")[0].replace("...", "ab").split(",")
    shapes = [f32(*[sizes[c] for c in term]) for term in terms]
    assert_refused(einsum_to_pointwise_pass, lambda x, w: torch.einsum(equation, x, w).sin(), shapes, because)


def test_lower_precision_stays():
    given = [bf16(4, 6), bf16(4, 6, 3)]
    assert_refused(
        einsum_to_pointwise_pass, lambda x, w: torch.einsum("bi,bio->bo", x, w), given, "rounded before they are summed"
    )


def test_the_largest_length_is_an_option():
    given = [torch.randn(4, 6), torch.randn(4, 6, 3)]
    module = capture(lambda x, w: torch.einsum("bi,bio->bo", x, w), given)
    run = run_pass(einsum_to_pointwise_pass.configured(largest=5), "pre_grad", module)
    assert "longer than 5" in run.record.rejects[0].reason


def test_the_layout_of_what_leaves_is_kept():
    """A result that the product would lay otherwise stays what it is."""
    w = torch.randn(3, 6, 4).permute(2, 1, 0)
    x = torch.randn(4, 6)
    module = capture(lambda x, w: torch.einsum("bi,bio->bo", x, w), [x, w])
    run_pass(einsum_to_pointwise_pass, "pre_grad", module)
    assert module(x, w).stride() == torch.einsum("bi,bio->bo", x, w).stride()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Linear(6, 18)

    def forward(self, x):
        return torch.einsum("bi,bio->bo", x, self.weights(x).view(-1, 6, 3)) + 1


def test_both_captures():
    model, x = Model(), torch.randn(5, 6)
    recorder = eductor.Recorder()
    compiled = eductor.compile(
        model, enable=["einsum_to_pointwise_pass"], engine="aten", instruments=[recorder], dynamic=True, strict=True
    )
    for given in (x, torch.randn(7, 6)):
        torch.testing.assert_close(compiled(given), model(given), rtol=1e-4, atol=1e-5)
    assert "pre_grad/einsum_to_pointwise_pass" in recorder.changed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.export(model, (x,)).module()
    propagate(module, [x])
    assert run_pass(einsum_to_pointwise_pass, "pre_grad", module).record.changed
    torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-5)
