"""Fused attention on a GPU: masks that hide whole rows, every dtype, training and inference."""

from __future__ import annotations

import math

import pytest
import torch

import eductor

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def attention(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask, -1) @ v


def inputs(dtype, hidden, training):
    generator = torch.Generator("cuda").manual_seed(0)
    made = [torch.randn(2, 4, 64, 32, device="cuda", dtype=dtype, generator=generator) for _ in range(3)]
    mask = torch.zeros(2, 1, 64, 64, device="cuda", dtype=dtype)
    mask[0, :, 3] = hidden
    mask[1, :, :, 40:] = hidden
    return [x.requires_grad_(training) for x in made], mask


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", ["-inf", "least"])
def test_rows_without_a_key_are_eagers(dtype, hidden):
    (q, k, v), mask = inputs(dtype, -math.inf if hidden == "-inf" else torch.finfo(dtype).min, training=False)
    recorder = eductor.Recorder()
    with torch.no_grad():
        got = eductor.compile(attention, instruments=[recorder])(q, k, v, mask)
        expected = attention(*(x.double() for x in (q, k, v)), mask.double())
        rounded = attention(q, k, v, mask)
    assert "joint/fuse_attention" in recorder.changed()
    assert torch.equal(got.isnan(), rounded.isnan())
    alive = ~rounded.isnan()
    close = {torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(got.double()[alive], expected[alive], rtol=close, atol=close)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(dtype):
    (q, k, v), mask = inputs(dtype, torch.finfo(dtype).min, training=True)
    mask[0] = 0
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    recorder = eductor.Recorder()
    out = eductor.compile(attention, instruments=[recorder])(q, k, v, mask)
    assert "joint/fuse_attention" in recorder.changed()
    got = torch.autograd.grad(out.float().sin().sum(), (q, k, v))
    expected = torch.autograd.grad(attention(*wide, mask.double()).sin().sum(), wide)
    close = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 8e-3}[dtype]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=close, atol=close)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_keeps_the_mean(training):
    (q, k, v), mask = inputs(torch.bfloat16, 0.0, training)

    def dropped(q, k, v, mask):
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask, -1)
        return torch.nn.functional.dropout(weights, 0.25) @ v

    with torch.set_grad_enabled(training):
        compiled = eductor.compile(dropped)
        mean = torch.stack([compiled(q, k, v, mask).detach().float() for _ in range(200)]).mean(0)
    torch.testing.assert_close(mean, attention(q, k, v, mask).detach().float(), rtol=0.2, atol=0.2)
