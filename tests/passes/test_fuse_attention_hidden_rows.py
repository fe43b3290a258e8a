"""fuse_attention in training: rows of which masks hide all have eager's result and eager's gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from attention_masks import gradients, lowest, with_all_digits

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


def safe_attention(q, k, v, mask):
    return aten._safe_softmax(q @ k.transpose(-2, -1) * 0.3 + mask, -1) @ v


def inputs(dtype, where="keys", number="least"):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(B, H, n, D, generator=generator, dtype=torch.float64).to(dtype) for n in (S, T, T)]
    shape, hidden = WHERE[where]
    mask = torch.zeros(shape, dtype=dtype)
    low = lowest(number, dtype)
    mask[hidden] = low
    if shape[-1] == T:
        mask[..., 19:] = low
    return *made, mask


def step(fn, q, k, v, *masks):
    """A result and the gradients of query, key and value for a tangent that differs everywhere."""

    def tangent(out):
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return weights.to(out.dtype)

    return gradients(fn, (q, k, v), masks, tangent)


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
    truth = step(fn, *(with_all_digits(x) if x.is_floating_point() else x for x in given))
    eps = torch.finfo(given[0].dtype).eps
    for name, g, w, t in zip(("out", "dq", "dk", "dv"), got, wanted, truth, strict=True):
        assert torch.equal(g.isnan(), w.isnan()), name
        new, old = (float((x.double() - t).nan_to_num().abs().max()) for x in (g, w))
        assert new <= 4 * old + 8 * eps * max(1.0, float(t.nan_to_num().abs().max())), name
    records = [r for r in recorder.records if r.name == "fuse_attention"]
    assert sum(r.changed for r in records) == 1, [reject.reason for r in records for reject in r.rejects]


def two_numbers(*numbers):
    """The largest ones hide the others."""
    *made, mask = inputs(torch.float32, "rows")
    mask[0, 0, 5] = torch.where(torch.arange(T) % 3 == 0, *map(torch.tensor, numbers))
    return *made, mask


def not_a_number():
    *made, mask = inputs(torch.float32, "rows")
    mask[1, 0, 2, 4] = math.nan
    return *made, mask


def two_masks(q, k, v, of_keys, of_queries):
    return torch.softmax(q @ k.transpose(-2, -1) * 0.3 + of_keys + of_queries, -1) @ v


def of_which_one_hides_queries():
    return *inputs(torch.float32, "keys", "-1e30"), inputs(torch.float32, "queries", "-1e37")[-1]


def filled_beside_a_mask_that_is_added(q, k, v, mask, kept):
    return torch.softmax((q @ k.transpose(-2, -1) * 0.3 + mask).masked_fill(~kept, -math.inf), -1) @ v


def with_kept_keys():
    return *inputs(torch.float32), (torch.arange(T) % 4 > 0).expand(B, 1, S, T)


def filled(q, k, v, kept, low=-math.inf):
    return torch.softmax((q @ k.transpose(-2, -1) * 0.3).masked_fill(~kept, low), -1) @ v


def picked(q, k, v, kept):
    return torch.softmax(torch.where(kept, q @ k.transpose(-2, -1) * 0.3, -math.inf), -1) @ v


def filled_then_added(q, k, v, mask, kept):
    return torch.softmax((q @ k.transpose(-2, -1) * 0.3).masked_fill(~kept, -math.inf) + mask, -1) @ v


def filled_with_a_number_then_added(q, k, v, mask, kept):
    least = torch.finfo(q.dtype).min
    return torch.softmax((q @ k.transpose(-2, -1) * 0.3).masked_fill(~kept, least) + mask, -1) @ v


def of_shared_keys(q, k, v, mask, kept):
    k, v = (x[:, :, None].expand(B, 1, H, T, D).reshape(B, H, T, D) for x in (k, v))
    return filled_then_added(q, k, v, mask, kept)


def keys_first(q, k, v, kept):
    scores = (k @ q.transpose(-2, -1) * 0.3).masked_fill(~kept.transpose(-2, -1), -math.inf)
    return (v.transpose(-2, -1) @ torch.softmax(scores, -2)).transpose(-2, -1)


def seen_keys(where):
    """Query, key, value and what is kept: some queries see no key, others a part."""
    *made, mask = inputs(torch.float32, where, "-inf")
    return *made, mask == 0


def two_reasons(heads=H):
    """Rows hidden by an added mask, by a condition, by parts of both, and by a condition for one head alone."""
    q, k, v, mask = inputs(torch.float32, "rows", "-inf")
    mask[1, 0, 9, :20] = mask[1, 0, 12, :7] = -math.inf
    kept = torch.ones(B, H, S, T, dtype=torch.bool)
    kept[1, :, 9, 20:] = kept[0, 1, 11] = kept[1, :, 14] = kept[0, :, 4, 3:9] = False
    return q, k[:, :heads], v[:, :heads], mask, kept


NUMBERS = ("least", "-1e30", "-1e9", "-inf")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
DYNAMIC: dict[str, Any] = {"dynamic": True, "decompositions": DECOMPOSED}

HIDDEN: dict[str, tuple[Callable[..., Any], Callable[[], Any], dict[str, Any]]] = {
    **{
        f"added_mask-{where}-{number}-{dtype}": (attention, partial(inputs, dtype, where, number), {})
        for where, number, dtype in product(WHERE, NUMBERS, DTYPES)
    },
    **{
        f"dynamic_sizes-{where}-{number}": (attention, partial(inputs, torch.float32, where, number), DYNAMIC)
        for where, number in product(("keys", "rows"), NUMBERS)
    },
    **{
        f"numbers_that_differ-{a}-{b}": (attention, partial(two_numbers, a, b), {})
        for a, b in ((-1e38, -3e38), (-2e38, -3e38), (-1e35, -math.inf), (-1e31, -1e38))
    },
    "a_mask_that_is_no_number": (attention, not_a_number, {}),
    "two_masks_of_which_one_hides_queries": (two_masks, of_which_one_hides_queries, {}),
    **{
        f"{fn.__name__}_with_minus_infinity-{where}{'-decomposed' if options else ''}": (
            fn,
            partial(seen_keys, where),
            options,
        )
        for fn, where, options in product((filled, picked, keys_first), WHERE, ({}, {"decompositions": DECOMPOSED}))
    },
    **{
        f"{fn.__name__}-{bool(options)}": (fn, two_reasons, options)
        for fn, options in product(
            (filled_beside_a_mask_that_is_added, filled_then_added, filled_with_a_number_then_added), ({}, DYNAMIC)
        )
    },
    "shared_keys_that_two_masks_hide": (of_shared_keys, partial(two_reasons, 1), {}),
    "infinities_that_are_filled_beside_a_mask_that_is_added": (filled_beside_a_mask_that_is_added, with_kept_keys, {}),
    **{
        f"a_safe_softmax-{where}-{number}": (safe_attention, partial(inputs, torch.float32, where, number), {})
        for where, number in product(("keys", "rows"), ("least", "-inf"))
    },
}
"""Programs with rows of which a mask hides all: the function, its inputs, the options."""


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_rows_are_eagers(name):
    fn, make, options = HIDDEN[name]
    assert_as_eager(fn, make(), **options)


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_a_program_that_runs_with_and_without_hidden_rows(engine):
    torch._dynamo.reset()
    compiled = eductor.compile(attention, engine=engine)
    *made, mask = inputs(torch.float32)
    for masks in (mask, torch.zeros_like(mask), mask.flip(0), torch.full_like(mask, -math.inf), mask):
        got, wanted = step(compiled, *made, masks), step(attention, *made, masks)
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


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
