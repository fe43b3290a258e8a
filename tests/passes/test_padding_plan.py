"""Which dimensions pad_mm pads: the decision by itself, over sizes, layouts, dtypes and devices."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from eductor.cost import cuda_device, device_of
from eductor.passes.joint.padding.plan import NO_PADS, PADDED_DTYPES, Matrix, MatrixProduct, Pads, ProductBias, plan

GIB = 1 << 30
A100 = cuda_device("NVIDIA A100-SXM4-80GB", 108, 80 * GIB, tf32=True)
H100 = cuda_device("NVIDIA H100 80GB HBM3", 132, 80 * GIB, tf32=True)
H200 = cuda_device("NVIDIA H200", 132, 141 * GIB, tf32=True)
CHIPS = [A100, H100, H200]


def product(m, k, n, *, left="k", right="n", fuses=False, dtype=torch.bfloat16, device=H200, **given):
    """A product of dense matrices that lie along the given dimensions."""
    size = {"m": m, "k": k, "n": n}
    return MatrixProduct(
        m,
        k,
        n,
        dtype,
        left=Matrix(left, size[left], fuses),
        right=Matrix(right, size[right], fuses),
        device=device,
        **given,
    )


@pytest.mark.parametrize("device", CHIPS, ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("sizes", "given_", "pads"),
    [
        ((4096, 4097, 4096), {}, Pads(k=7)),
        ((4096, 4098, 4096), {}, Pads(k=6)),
        ((4096, 4097, 4096), {"dtype": torch.float16}, Pads(k=7)),
        ((4096, 4097, 4096), {"dtype": torch.float32}, Pads(k=3)),
        ((4096, 4100, 4096), {"dtype": torch.float32}, NO_PADS),
        ((4096, 4096, 4097), {"copies_result": False}, Pads(n=7)),
        ((4096, 4097, 4097), {"copies_result": False}, Pads(k=7, n=7)),
        ((4097, 4097, 4097), {"copies_result": False}, Pads(k=7, n=7)),
        ((4097, 4096, 4096), {}, NO_PADS),
        ((4097, 4096, 4096), {"left": "m"}, Pads(m=7)),
        ((4096, 4097, 4096), {"left": "m", "right": "n"}, NO_PADS),
        ((4096, 4097, 4096), {"left": "m", "right": "k"}, Pads(k=7)),
        ((1024, 1025, 1024), {"batch": 64, "fuses": True}, Pads(k=7)),
    ],
)
def test_what_lies_along_rows_is_padded(device, sizes, given_, pads):
    found = plan(product(*sizes, device=device, **given_))
    assert found.pads == pads, found.reason
    if any(pads):
        assert f"with {pads}" in found.reason
    else:
        assert "each row of its matrices begins at a multiple of 16 bytes" in found.reason


@pytest.mark.parametrize(
    ("sizes", "given_", "reason"),
    [
        ((8, 4097, 4097), {"fuses": True, "copies_result": False}, "memory-bound"),
        ((4096, 9, 4096), {"fuses": True, "copies_result": False}, "memory-bound"),
        ((33, 33, 33), {}, "gains too little"),
        ((4096, 0, 4097), {}, "size 0"),
        ((4096, 4096, 4097), {"batch": 0}, "size 0"),
        ((4096, 4097, 4096), {"dtype": torch.float64}, "products in float64 need no alignment"),
        ((4096, 4097, 4096), {"dtype": torch.int8}, "products in int8 need no alignment"),
        ((4096, 4097, 4096), {"dynamic": frozenset("k")}, "dynamic"),
        ((4096, 4096, 50257), {"device": dataclasses.replace(H200, memory=GIB)}, "MiB are allowed"),
        ((4096, 4097, 4096), {"device": device_of(torch.device("cpu"))}, "need no alignment on a CPU"),
    ],
)
def test_what_is_not_padded_says_why(sizes, given_, reason):
    found = plan(product(*sizes, **given_))
    assert found.pads == NO_PADS
    assert reason in found.reason


def test_float32_needs_alignment_only_where_it_may_use_tf32():
    full = cuda_device("NVIDIA H200", 132, 141 * GIB, tf32=False)
    assert plan(product(4096, 4097, 4096, dtype=torch.float32, device=full)).pads == NO_PADS
    assert plan(product(4096, 4097, 4096, dtype=torch.float32, device=H200)).pads == Pads(k=3)
    volta = cuda_device("Tesla V100-SXM2-16GB", 80, 16 * GIB, tf32=True)
    assert plan(product(4096, 4097, 4096, dtype=torch.float32, device=volta)).pads == NO_PADS


def test_what_fuses_is_padded_where_copies_would_cost_too_much():
    thin = (2048, 513, 2048)
    assert plan(product(*thin, fuses=True)).pads == Pads(k=7)
    assert "gains too little" in plan(product(*thin)).reason


def test_a_result_that_must_keep_its_strides_may_cost_too_much():
    logits = product(4096, 256, 50257, right="k")
    assert "gains too little" in plan(logits).reason
    assert plan(dataclasses.replace(logits, copies_result=False)).pads == Pads(n=7)


def test_each_dimension_is_chosen_by_itself():
    """All sizes are odd; rows of the result lie along n, rows of the factors along k: nothing lies along m."""
    found = plan(product(4097, 4097, 4097, right="k", left="k", fuses=True))
    assert found.pads == Pads(k=7, n=7)


def test_the_gradients_of_logits_are_padded():
    """dx = dy @ w, dw = dy.T @ x: the vocabulary lies along the rows of dy, which a kernel writes padded."""
    step = 50257
    dx = MatrixProduct(4096, step, 768, torch.bfloat16, Matrix("k", step, fuses=True), Matrix("n", 768), H200)
    dw = MatrixProduct(step, 4096, 768, torch.bfloat16, Matrix("m", step, fuses=True), Matrix("n", 768), H200)
    assert plan(dx).pads == Pads(k=7)
    assert plan(dw).pads == Pads(m=7)


def test_aligned_memory_is_not_padded_though_the_size_is_odd():
    """The first columns of a wider matrix: what a padded product leaves to the next one."""
    cut = MatrixProduct(4096, 4097, 4096, torch.bfloat16, Matrix("k", 4104), Matrix("n", 4096), H200)
    assert "each row of its matrices" in plan(cut).reason


def test_memory_that_is_not_aligned_is_left_where_no_size_is_short():
    shifted = MatrixProduct(4096, 4096, 4096, torch.bfloat16, Matrix("k", 1), Matrix("n", 4096), H200)
    assert "only strides or offsets are unaligned" in plan(shifted).reason


def test_the_copy_of_a_bias_counts():
    plain = product(4096, 4096, 4097, copies_result=False)
    for bias, copies in [
        (ProductBias(("n",)), 1),
        (ProductBias(("m", "n")), 1),
        (ProductBias(()), 0),
        (ProductBias(("n",), fuses=True), 0),
    ]:
        padded = dataclasses.replace(plain, bias=bias)
        assert len(list(padded.copies(Pads(n=7)))) == 1 + copies
    assert list(dataclasses.replace(plain, bias=ProductBias(("m",))).copies(Pads(n=7))) == list(plain.copies(Pads(n=7)))


def test_rows_at_the_end_are_cut_off_without_a_copy():
    odd = product(4097, 4096, 4096, left="m")
    assert len(list(odd.copies(Pads(m=7)))) == 1
    assert len(list(dataclasses.replace(odd, batch=2).copies(Pads(m=7)))) == 2


def test_times_that_are_measured_decide():
    asked = []

    def measure(found, pads):
        asked.append((found, pads))
        return times

    odd = product(4096, 4097, 4096)
    times = (2.0, 1.0)
    assert plan(odd, measure=measure).pads == Pads(k=7)
    times = (1.0, 0.95)
    refused = plan(odd, measure=measure)
    assert refused.pads == NO_PADS
    assert "as measured" in refused.reason
    assert asked == [(odd, Pads(k=7))] * 2
    assert plan(product(8, 4097, 4096), measure=measure).pads == NO_PADS
    assert len(asked) == 2, "a memory-bound product is not measured"


def test_force_pads_what_is_short_on_any_device():
    cpu = device_of(torch.device("cpu"))
    found = plan(product(6, 7, 5, dtype=torch.float32, device=cpu), force=True)
    assert (found.pads, found.reason) == (Pads(m=2, k=1, n=3), "padding is forced")
    assert plan(product(1, 7, 5, dtype=torch.bfloat16, device=cpu), force=True).pads == Pads(k=1, n=3)
    fixed = product(6, 7, 5, dtype=torch.float32, device=cpu, dynamic=frozenset("mn"))
    assert plan(fixed, force=True).pads == Pads(k=1)
    assert plan(product(6, 7, 5, dtype=torch.float64, device=cpu), force=True).pads == NO_PADS
    assert plan(product(6, 0, 5, dtype=torch.float32, device=cpu), force=True).pads == NO_PADS


SIZES = st.one_of(st.integers(0, 40), st.integers(1000, 6000))


@st.composite
def products(draw):
    m, k, n = draw(SIZES), draw(SIZES), draw(SIZES)
    return product(
        m,
        k,
        n,
        left=draw(st.sampled_from("mk")),
        right=draw(st.sampled_from("kn")),
        fuses=draw(st.booleans()),
        dtype=draw(st.sampled_from([*PADDED_DTYPES, torch.float64])),
        device=draw(st.sampled_from(CHIPS)),
        batch=draw(st.integers(1, 8)),
        copies_result=draw(st.booleans()),
        dynamic=frozenset(draw(st.sets(st.sampled_from("mkn")))),
        bias=draw(st.sampled_from([None, ProductBias(("n",)), ProductBias(("m", "n"), fuses=True)])),
    )


@given(products(), st.booleans())
def test_pads_are_short_and_only_where_they_are_needed(found, force):
    pads, reason = dataclasses.astuple(plan(found, force=force))
    assert reason
    unit = 16 // found.dtype.itemsize
    for dim in "mkn":
        size, added = getattr(found, dim), getattr(pads, dim)
        assert 0 <= added < unit
        if added:
            assert size % unit
            assert (size + added) % unit == 0
            assert size > 1
            assert dim not in found.dynamic
            assert found.dtype in PADDED_DTYPES
    if any(pads) and not force:
        assert found.time(pads) < found.time()
    assert plan(found, force=force) == plan(found, force=force)


@given(products())
def test_a_padded_product_is_not_padded_again(found):
    pads = plan(found).pads
    m, k, n = (getattr(found, dim) + getattr(pads, dim) for dim in "mkn")
    again = product(m, k, n, left=found.left.along, right=found.right.along, dtype=found.dtype, device=found.device)
    chosen = [dim for dim in "mkn" if getattr(pads, dim)]
    assert not any(getattr(plan(again).pads, dim) for dim in chosen)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.sampled_from(PADDED_DTYPES))
def test_zeros_change_nothing(m, k, n, dtype):
    pads = plan(product(m, k, n, dtype=dtype), force=True).pads
    generator = torch.Generator().manual_seed(m * 400 + k * 20 + n)
    a = torch.randn(m, k, dtype=torch.float64, generator=generator)
    b = torch.randn(k, n, dtype=torch.float64, generator=generator)
    padded = F.pad(a, [0, pads.k, 0, pads.m]) @ F.pad(b, [0, pads.n, 0, pads.k])
    torch.testing.assert_close(padded[:m, :n], a @ b, rtol=1e-12, atol=1e-12)
