"""Numbers that the code generator computes as eager does, to the bit: quotients, remainders, roundings, signs of zeros."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.engines.inductor.patches import emulates_roundings
from eductor.graph.values.value_comparison import is_bitwise_equal

INF = float("inf")
NUMBERS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    -0.1,
    3.0,
    -3.0,
    5.0,
    -5.0,
    7.5,
    1e-3,
    INF,
    -INF,
    float("nan"),
    1e4,
    -1e4,
    2.0,
    1 / 3,
]


def compiled(program, **options):
    return eductor.compile(program, engine="inductor", strict=True, fullgraph=True, **options)


def assert_same_bits(program, *inputs, **options):
    for i, (a, b) in enumerate(zip(program(*inputs), compiled(program, **options)(*inputs), strict=True)):
        assert is_bitwise_equal(a, b), i


def divisions(a, b):
    floors = a // b, a // 0.1, 1.0 // b, a // INF, torch.div(a, b, rounding_mode="floor")
    truncated = torch.div(a, b, rounding_mode="trunc"), torch.div(a, 0.1, rounding_mode="trunc")
    return *floors, *truncated, a % b, a % 0.1, 5 % b, torch.remainder(a, -3), a % 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_rounded_divisions_and_remainders(dtype):
    numbers = torch.tensor(NUMBERS, dtype=dtype)
    assert_same_bits(divisions, *torch.meshgrid(numbers, numbers, indexing="ij"))


def rounded_by_the_user(x):
    half = x.bfloat16()
    narrow = (x * 3).half()
    wide = x.bfloat16().float() * 3, (x * 1e5).half().float(), narrow.float().bfloat16().float()
    return *wide, half, half.float() + 1, narrow.double()


def test_casts_down_and_up_round():
    assert_same_bits(rounded_by_the_user, torch.randn(64) * 10)


def in_half_precision(x):
    return x * 1e6 / 1e6, (x + 0.1) * 0.3 - 1


@pytest.mark.skipif(not emulates_roundings(), reason="torch 2.11 cannot")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_intermediate_results_round_on_request(dtype):
    x = torch.randn(64).to(dtype) * 10
    assert_same_bits(in_half_precision, x, round_intermediates=True)
    torch._dynamo.reset()
    kept_wide = compiled(in_half_precision)(x)
    assert not is_bitwise_equal(kept_wide[1], in_half_precision(x)[1])


def attention(q, k, v):
    return (((q @ k.transpose(-2, -1)) * 1e-4).softmax(-1) @ v,)


def test_attention_that_rounds_is_not_fused():
    """Scores that overflow in float16 before they are scaled are infinite in eager."""
    q, k, v = (torch.full((1, 2, 16, 8), size, dtype=torch.float16) for size in (200.0, 200.0, 1.0))
    for rounds in dict.fromkeys((False, emulates_roundings())):
        torch._dynamo.reset()
        recorder = Recorder()
        compiled(attention, round_intermediates=rounds, instruments=[recorder])(q, k, v)
        assert any("fuse_attention" in address for address in recorder.changed()) != rounds


def clamped(x):
    return x.clamp(min=0), x.clamp(max=0), x.clamp(0, 1), x.clamp_min(-0.0), x.relu(), x.half().clamp(min=0)


@pytest.mark.parametrize("size", [3, 40])
def test_a_clamped_zero_keeps_its_sign(size):
    zeros = torch.zeros(size, size)
    zeros[torch.rand(size, size) < 0.5] = -0.0
    assert_same_bits(clamped, zeros)


def norms_of_nothing(x, y):
    layer = torch.native_layer_norm(x, [0], None, None, 1e-5)
    return *layer, *torch.native_group_norm(y, None, None, 2, 4, 0, 2, 1e-5)


def test_norms_of_no_elements_have_a_mean_of_zero():
    assert_same_bits(norms_of_nothing, torch.zeros(3, 0), torch.zeros(2, 4, 0))


def repeated_beside_a_write(x):
    return torch.cat([x, torch.empty_like(x).zero_()]), torch.cat([x, x], 2), torch.stack([x, x])


def test_repeated_tensors_keep_their_layout_beside_a_write():
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    got, expected = compiled(repeated_beside_a_write)(x), repeated_beside_a_write(x)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
