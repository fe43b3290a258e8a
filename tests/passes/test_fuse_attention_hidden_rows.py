"""fuse_attention in training: rows of which masks hide all have eager's result and eager's gradients."""

from __future__ import annotations

import math

import pytest
import torch

import eductor
from eductor.engines import find_engine
from eductor.options import Options
from eductor.passes.joint.fuse_attention import fuse_attention
from eductor.pipeline.instruments import Instrument

aten = torch.ops.aten
DECOMPOSED = find_engine("inductor").decompositions(Options())

B, H, S, T, D = 2, 3, 18, 24, 8
WHERE = {
    "keys": ((B, 1, 1, T), (0,)),
    "rows": ((B, 1, S, T), (0, 0, slice(3, 7))),
    "queries": ((B, 1, S, 1), (1, 0, slice(0, 5))),
}
"""The shape of a mask, and of which part all is hidden."""


def attention(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D) + mask, -1) @ v


def inputs(dtype, where="keys", number="least"):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(B, H, n, D, generator=generator, dtype=torch.float64).to(dtype) for n in (S, T, T)]
    shape, hidden = WHERE[where]
    mask = torch.zeros(shape, dtype=dtype)
    low = torch.finfo(dtype).min if number == "least" else float(number)
    mask[hidden] = low
    if shape[-1] == T:
        mask[..., 19:] = low
    return *made, mask


def step(fn, q, k, v, *masks):
    """A result and the gradients of query, key and value for a tangent that differs everywhere."""
    given = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = fn(*given, *masks)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [out.detach(), *torch.autograd.grad(out, given, weights.to(out.dtype))]


def assert_as_eager(fn, given, **options):
    """Judged by a run in float64, of which it may be no further away than eager by more than rounding."""
    torch._dynamo.reset()
    recorder = eductor.Recorder()
    compiled = eductor.compile(
        fn,
        joint_custom_pre_pass=[fuse_attention],
        engine="aten",
        instruments=[recorder],
        strict=True,
        **options,
    )
    got, wanted = step(compiled, *given), step(fn, *given)
    truth = step(fn, *(_with_all_digits(x.double()) if x.is_floating_point() else x for x in given))
    eps = torch.finfo(given[0].dtype).eps
    for name, g, w, t in zip(("out", "dq", "dk", "dv"), got, wanted, truth, strict=True):
        assert torch.equal(g.isnan(), w.isnan()), name
        new, old = (float((x.double() - t).nan_to_num().abs().max()) for x in (g, w))
        assert new <= 4 * old + 8 * eps * max(1.0, float(t.nan_to_num().abs().max())), name
    records = [r for r in recorder.records if r.name == "fuse_attention"]
    assert sum(r.changed for r in records) == 1, [reject.reason for r in records for reject in r.rejects]


def _with_all_digits(x):
    """A mask in which rows hidden by an ordinary number are shifted to zero: even float64 would round their scores."""
    top = x.amax(-1, keepdim=True)
    return torch.where((top < -1e6) & (top > -1e12), x - top, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", ["least", "-1e30", "-1e9", "-inf"])
@pytest.mark.parametrize("where", WHERE)
def test_rows_hidden_by_an_added_mask(where, number, dtype):
    assert_as_eager(attention, inputs(dtype, where, number))


@pytest.mark.parametrize("number", ["least", "-1e30", "-1e9", "-inf"])
@pytest.mark.parametrize("where", ["keys", "rows"])
def test_dynamic_sizes(where, number):
    assert_as_eager(attention, inputs(torch.float32, where, number), dynamic=True, decompositions=DECOMPOSED)


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_a_program_that_runs_with_and_without_hidden_rows(engine):
    torch._dynamo.reset()
    compiled = eductor.compile(attention, engine=engine)
    *made, mask = inputs(torch.float32)
    for masks in (mask, torch.zeros_like(mask), mask.flip(0), torch.full_like(mask, -math.inf), mask):
        got, wanted = step(compiled, *made, masks), step(attention, *made, masks)
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("numbers", [(-1e38, -3e38), (-2e38, -3e38), (-1e35, -math.inf), (-1e31, -1e38)])
def test_numbers_that_differ_in_a_hidden_row(numbers):
    """The largest ones hide the others."""
    *made, mask = inputs(torch.float32, "rows")
    mask[0, 0, 5] = torch.where(torch.arange(T) % 3 == 0, *map(torch.tensor, numbers))
    assert_as_eager(attention, [*made, mask])


def test_a_mask_that_is_no_number():
    *made, mask = inputs(torch.float32, "rows")
    mask[1, 0, 2, 4] = math.nan
    assert_as_eager(attention, [*made, mask])


def test_two_masks_of_which_one_hides_queries():
    def fn(q, k, v, of_keys, of_queries):
        return torch.softmax(q @ k.transpose(-2, -1) * 0.3 + of_keys + of_queries, -1) @ v

    *made, of_keys = inputs(torch.float32, "keys", "-1e30")
    of_queries = inputs(torch.float32, "queries", "-1e37")[-1]
    assert_as_eager(fn, [*made, of_keys, of_queries])


def test_infinities_that_are_filled_beside_a_mask_that_is_added():
    def fn(q, k, v, mask, kept):
        return torch.softmax((q @ k.transpose(-2, -1) * 0.3 + mask).masked_fill(~kept, -math.inf), -1) @ v

    kept = torch.arange(T) % 4 > 0
    assert_as_eager(fn, [*inputs(torch.float32), kept.expand(B, 1, S, T)])


@pytest.mark.parametrize("number", ["least", "-inf"])
@pytest.mark.parametrize("where", ["keys", "rows"])
def test_a_safe_softmax(where, number):
    def fn(q, k, v, mask):
        return aten._safe_softmax(q @ k.transpose(-2, -1) * 0.3 + mask, -1) @ v

    assert_as_eager(fn, inputs(torch.float32, where, number))


class Graphs(Instrument):
    """The forward and the backward as they are run."""

    def __init__(self) -> None:
        self.seen: list[list[object]] = []

    def before_stage(self, run) -> None:
        if run.name == "engine":
            self.seen.append([getattr(n.target, "overloadpacket", None) for n in run.module.graph.nodes])


def test_the_backward_has_one_multiplication_more():
    """Nothing is multiplied in the forward, which also counts the keys, so that no mask is reduced in the backward."""
    torch._dynamo.reset()
    graphs = Graphs()
    step(eductor.compile(attention, engine="aten", instruments=[graphs]), *inputs(torch.float32, "rows"))
    forward, backward = graphs.seen
    assert aten._scaled_dot_product_flash_attention_for_cpu in forward
    assert forward.count(aten.mul) == 0
    assert backward.count(aten.mul) == 1
    assert not {aten.sum, aten.amax, aten.eq} & set(backward)
