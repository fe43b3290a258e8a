"""Small forms of what is saved: fewer bytes, the same gradients."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from saving import FUSING, Saved

import eductor
from eductor.partition import partition_fn

sys.path.insert(0, str(Path(__file__).parent.parent / "autograd"))
from tracing import joint_of, targets

aten, prims = torch.ops.aten, torch.ops.prims


def dropped(x, w):
    return (F.dropout(x @ w, 0.5) @ w.t()).sum()


def sorted_rows(x, w):
    values, _ = (x @ w).sort(-1)
    return (values * torch.arange(values.shape[-1])).sum()


def largest(x, w):
    return (x @ w).t().max(0).values.sin().sum()


def scanned(x, w):
    return (x @ w).cummax(0).values.square().sum()


def compiled(fn, engine=FUSING, **options):
    torch._dynamo.reset()
    saved = Saved()
    options = {"fallback_random": True, "strict": True, "instruments": [saved], **options}
    return eductor.compile(fn, engine=engine, **options), saved


def gradients(fn, shape=(1 << 16, 8), wide=16):
    torch.manual_seed(0)
    x, w = torch.randn(shape), torch.randn(shape[-1], wide, requires_grad=True)
    torch.manual_seed(1)
    fn(x, w).backward()
    return w.grad


def entries(saved, form):
    return [entry for entry in saved.plan.saved if entry.reason.endswith(f", as {form}")]


@pytest.mark.parametrize("engine", [FUSING, "inductor"], ids=["fusing", "inductor"])
@pytest.mark.parametrize(
    ("program", "form", "size"),
    [
        (dropped, "bits", (1 << 16) * 16 // 8),
        (sorted_rows, "uint8", (1 << 16) * 16),
        (largest, "uint8", 1 << 16),
        (scanned, "int32", 4 * (1 << 16) * 16),
    ],
    ids=["flags as bits", "indices of a sort", "indices of a maximum", "indices in a long dimension"],
)
def test_a_small_form_has_few_bytes_and_gives_the_same_gradients(program, form, size, engine):
    fn, saved = compiled(program, engine)
    found, expected = gradients(fn), gradients(program)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    assert [entry.bytes for entry in entries(saved, form)] == [size]


@pytest.mark.parametrize(
    ("options", "shape"),
    [({"engine": "aten"}, (1 << 16, 8)), ({"dynamic": True}, (1 << 16, 8)), ({}, (1 << 8, 8)), ({}, (8191, 8))],
    ids=["nothing fuses", "unknown sizes", "few flags", "few for their number"],
)
def test_flags_are_saved_as_they_are(options, shape):
    fn, saved = compiled(dropped, **options)
    torch.testing.assert_close(gradients(fn, shape, 7), gradients(dropped, shape, 7), rtol=1e-4, atol=1e-3)
    assert not entries(saved, "bits")


def test_what_is_returned_is_saved_as_it_is():
    def program(x, w):
        values, indices = (x @ w).max(-1)
        return values.sum(), indices

    fn, saved = compiled(program)
    torch.testing.assert_close(gradients(lambda x, w: fn(x, w)[0]), gradients(lambda x, w: program(x, w)[0]))
    assert not entries(saved, "uint8")


def test_flags_are_made_from_bits_right_before_they_are_read():
    joint = joint_of(dropped, torch.randn(1 << 16, 8), torch.randn(8, 16, requires_grad=True))
    found = targets(partition_fn(joint, options={"engine": FUSING}).backward)
    assert found.index(aten.mm.default) < found.index(prims.iota.default) < found.index(aten.mul.Tensor)
