"""Fused attention on a GPU: masks that hide whole rows, every dtype, training and inference."""

from __future__ import annotations

import math

import pytest
import torch
from attention_masks import gradients, lowest, with_all_digits

import eductor

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def attention(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask, -1) @ v


def safe_attention(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask
    return torch.ops.aten._safe_softmax(scores, -1) @ v


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
    (q, k, v), mask = inputs(dtype, lowest(hidden, dtype), training=False)
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 57), (2, 1, 1, 57), (1, 4, 1, 57), (64, 57)])
def test_masks_that_are_broadcast(shape, dtype, training):
    """Kernels broadcast them by themselves; a number of keys that is not a multiple of 8 is padded for some."""
    generator = torch.Generator("cuda").manual_seed(0)
    made = [torch.randn(2, 4, n, 32, device="cuda", dtype=dtype, generator=generator) for n in (64, 57, 57)]
    mask = torch.zeros(shape, device="cuda", dtype=dtype)
    mask[..., 40:] = torch.finfo(dtype).min
    recorder = eductor.Recorder()
    compiled, wide = eductor.compile(attention, instruments=[recorder]), [x.double() for x in made]
    if training:
        got, expected = step(compiled, made, mask), step(attention, wide, mask.double())
    else:
        got, expected = [compiled(*made, mask)], [attention(*wide, mask.double())]
    assert "joint/fuse_attention" in recorder.changed()
    assert_close(got, expected, dtype)


HIDDEN = {
    "all": ((1, 1, 1, 56), (0,)),
    "keys": ((2, 1, 1, 56), (0,)),
    "rows": ((2, 1, 64, 56), (0, 0, slice(3, 9))),
    "queries": ((2, 1, 64, 1), (0, 0, slice(3, 9))),
    "of_a_head": ((2, 4, 64, 56), (0, 1, slice(3, 9))),
}
"""The shape of a mask, and of which part all is hidden, so that query and key of the first batch get a gradient of it."""


def with_hidden_rows(dtype, where, number):
    generator = torch.Generator("cuda").manual_seed(0)
    made = [torch.randn(2, 4, n, 32, device="cuda", dtype=dtype, generator=generator) for n in (64, 56, 56)]
    shape, hidden = HIDDEN[where]
    mask = torch.zeros(shape, device="cuda", dtype=dtype)
    mask[hidden] = lowest(number, dtype)
    return made, mask


def step(fn, made, *masks):
    """A result and three gradients, for a tangent that is nothing but in the rows of which some are hidden."""

    def tangent(out):
        made = torch.zeros(out.shape, dtype=torch.float64)
        made[:, :, 3:9] = torch.randn(made[:, :, 3:9].shape, generator=torch.Generator().manual_seed(1)).double()
        return made.to(out.device, out.dtype)

    return gradients(fn, made, masks, tangent)


def assert_close(got, expected, dtype):
    """By the norms, for each batch and head: gradients of hidden rows are small."""
    close = {torch.float32: 3e-3, torch.bfloat16: 3e-2}[dtype]
    for name, a, b in zip(("out", "dq", "dk", "dv", "dbias"), got, expected, strict=False):
        wrong, size = ((x.flatten(2).norm(dim=-1)) for x in (a.double() - b, b))
        assert bool((wrong <= close * size).all()), (name, wrong / size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", ["least", "-1e30", "-1e9"])
@pytest.mark.parametrize("where", HIDDEN)
def test_gradients_of_rows_hidden_by_an_added_mask(where, number, dtype):
    made, mask = with_hidden_rows(dtype, where, number)
    recorder = eductor.Recorder()
    got = step(eductor.compile(attention, instruments=[recorder]), made, mask)
    assert "joint/fuse_attention" in recorder.changed()
    assert_close(got, step(attention, [x.double() for x in made], with_all_digits(mask)), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("where", HIDDEN)
def test_gradients_of_rows_without_a_key_are_eagers(where, dtype):
    made, mask = with_hidden_rows(dtype, where, "-inf")
    recorder = eductor.Recorder()
    got = step(eductor.compile(attention, instruments=[recorder]), made, mask)
    assert "joint/fuse_attention" in recorder.changed()
    for name, a, b in zip(("out", "dq", "dk", "dv"), got, step(attention, made, mask), strict=True):
        assert torch.equal(a.isnan(), b.isnan()), name
    expected = step(attention, [x.double() for x in made], mask.double())
    assert_close([x.nan_to_num() for x in got], [x.nan_to_num() for x in expected], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_that_differ_in_a_hidden_row(dtype):
    made, mask = with_hidden_rows(dtype, "rows", "least")
    mask[0, 0, 5] = torch.where(torch.arange(56, device="cuda") % 3 == 0, -2e38, -3e38)
    mask[0, 0, 6, 7:] = -math.inf
    got = step(eductor.compile(attention), made, mask)
    assert_close(got, step(attention, [x.double() for x in made], mask.double()), dtype)


@pytest.mark.parametrize("number", ["least", "-inf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_a_safe_softmax(training, dtype, number):
    made, mask = with_hidden_rows(dtype, "rows", number)
    wide = [x.double() for x in made], mask.double()
    if training:
        assert_close(step(eductor.compile(safe_attention), made, mask), step(safe_attention, *wide), dtype)
    else:
        assert_close([eductor.compile(safe_attention)(*made, mask)], [safe_attention(*wide[0], wide[1])], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_learned_bias_has_a_gradient_in_hidden_rows(dtype):
    def biased(q, k, v, bias, mask):
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias + mask, -1) @ v

    made, mask = with_hidden_rows(dtype, "rows", "least")
    bias = torch.randn(2, 4, 64, 56, device="cuda", dtype=dtype, generator=torch.Generator("cuda").manual_seed(2))

    def with_bias(fn, tensors, masks):
        def tangent(out):
            return torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.device, out.dtype)

        return gradients(fn, [*tensors, bias.to(tensors[0].dtype)], [masks], tangent)

    got = with_bias(eductor.compile(biased), made, mask)
    expected = with_bias(biased, [x.double() for x in made], mask.double())
    assert_close(got, expected, dtype)
    assert_close([got[-1][:1, :, 3:9]], [expected[-1][:1, :, 3:9]], dtype)


def test_dropout_in_hidden_rows():
    """Values that are one-hot show which weights were dropped: with those, eager has the same results, and the same
    gradients of rows that are seen; those that are hidden give queries and keys none."""
    p = 0.25

    def dropped(q, k, v, mask):
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask, -1)
        return torch.nn.functional.dropout(weights, p) @ v

    generator = torch.Generator("cuda").manual_seed(0)
    q, k = (torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16, generator=generator) for _ in range(2))
    v = torch.eye(64, device="cuda", dtype=torch.bfloat16).expand(2, 4, 64, 64).contiguous()
    mask = torch.zeros(2, 1, 1, 64, device="cuda", dtype=torch.bfloat16)
    mask[0] = torch.finfo(torch.bfloat16).min
    recorder = eductor.Recorder()
    got = step(eductor.compile(dropped, instruments=[recorder]), [q, k, v], mask)
    assert "joint/fuse_attention" in recorder.changed()
    kept = (got[0] != 0).double() / (1 - p)
    assert 0.7 < (got[0] != 0)[0].double().mean() < 0.8

    def with_the_same(q, k, v, mask):
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask, -1) * kept @ v

    expected = step(with_the_same, [x.double() for x in (q, k, v)], mask.double())
    assert all(bool(x.isfinite().all()) for x in got)
    assert_close([got[0][:1]], [expected[0][:1]], torch.bfloat16)
    assert_close([x[1:] for x in got], [x[1:] for x in expected], torch.bfloat16)


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
