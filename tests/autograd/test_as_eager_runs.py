"""Traces have the operators, and the layouts, that eager's kernels have, where torch's stand-ins in Python differ."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import eductor


def both(program, x, **options):
    """Result and gradient of a program as it is and compiled, for a gradient in a layout of its own."""
    seen = []
    for fn in (program, eductor.compile(program, profile="exact", strict=True, **options)):
        torch.manual_seed(0)
        leaf = x.detach().clone().requires_grad_()
        out = fn(leaf)
        out.backward(torch.linspace(-1, 1, out.numel()).view(out.shape))
        seen.append((out.detach(), leaf.grad))
    return zip(*seen, strict=True)


def test_the_gradient_of_a_dropout_of_a_permuted_value_is_viewed():
    linear = nn.Linear(8, 8)

    def program(x):
        return F.dropout(linear(x), 0.5).transpose(1, 2).contiguous().exp()

    for eager, ours in both(program, torch.randn(2, 4, 8)):
        assert torch.equal(eager, ours)


def test_the_gradient_of_a_layer_norm_of_a_permuted_value_is_viewed():
    linear, norm = nn.Linear(8, 8), nn.LayerNorm(4)

    def program(x):
        return norm(linear(x).transpose(1, 2)).transpose(1, 2).contiguous().exp()

    for eager, ours in both(program, torch.randn(2, 4, 8)):
        assert torch.equal(eager, ours)


UPSAMPLING = {
    "linear": ((2, 3, 5), {"scale_factor": 2.5}),
    "bilinear": ((2, 3, 4, 5), {"size": (7, 6), "align_corners": True}),
    "bicubic": ((2, 3, 4, 5), {"scale_factor": (2.0, 1.5)}),
    "trilinear": ((2, 3, 4, 3, 2), {"scale_factor": 2}),
    "nearest": ((2, 3, 4, 5), {"scale_factor": 3}),
}


@pytest.mark.parametrize("mode", UPSAMPLING)
def test_upsampling_rounds_as_in_eager(mode):
    shape, how = UPSAMPLING[mode]
    for eager, ours in both(lambda x: F.interpolate(x * 2, mode=mode, **how), torch.randn(shape)):
        assert torch.equal(eager, ours)


def test_a_dropout_of_a_transposed_value_draws_as_in_eager():
    for eager, ours in both(lambda x: F.dropout(x.transpose(0, 1) * 2, 0.2), torch.randn(2, 3, 8)):
        assert torch.equal(eager, ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("p", [0.1, 0.15, 0.42])
def test_a_dropout_is_rounded_as_in_eager(p, dtype):
    def program(x):
        return F.dropout(x * 2, p).square()

    seen = []
    for fn in (program, eductor.compile(program, profile="exact", strict=True)):
        torch.manual_seed(0)
        leaf = torch.randn(8, 32, dtype=dtype, requires_grad=True)
        out = fn(leaf)
        out.backward(torch.randn(8, 32, dtype=dtype))
        seen.append((out, leaf.grad, torch.get_rng_state()))
    assert all(map(torch.equal, *seen))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_upsampling_beside_a_dropout_is_not_compiled(checkpointed):
    def upsampled(x):
        return F.dropout(F.interpolate(x, scale_factor=1.5, mode="bilinear").transpose(0, 1), 0.5)

    def program(x):
        return checkpoint(upsampled, x, use_reentrant=False) if checkpointed else upsampled(x)

    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    torch.manual_seed(0)
    expected = program(x)
    torch.manual_seed(0)
    with pytest.warns(eductor.EductorWarning, match="beside dropout"):
        assert torch.equal(eductor.compile(program, profile="exact")(x), expected)
