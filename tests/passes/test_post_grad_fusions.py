"""The fusions that are made by request after the partition: sections of splits, products bound by memory.

Those of cats and stacks of pieces are tested with the other passes over the view algebra.
"""

from __future__ import annotations

import pytest
import torch
from after_autograd import ran, targets

import eductor
from eductor import Recorder
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.normalization import normalization_aten_pass
from eductor.passes.post_grad import POST_GRAD_FUSIONS
from eductor.passes.post_grad.decompose_mem_bound_mm import decompose_mem_bound_mm
from eductor.pipeline import Registry

aten = torch.ops.aten
FUSIONS = [row.name for row in POST_GRAD_FUSIONS]


def test_they_are_off_and_switched_on_by_name():
    assert not any(Registry.default().get("post_grad", name).load().on for name in FUSIONS)
    recorder = Recorder()
    module = capture(lambda x: torch.cat(x.split(1, -1)[1:3], 1) * 2, [torch.randn(4, 6)], "aten")
    eductor.post_grad_passes(
        module, True, options={"enable": FUSIONS, "instruments": [recorder], "strict": True, "debug": True}
    )
    assert {r.name for r in recorder.records if r.name in FUSIONS} == set(FUSIONS)
    assert aten.cat.default not in targets(module)
    with pytest.raises(eductor.errors.UnknownName, match="split_cat_atten_pass"):
        eductor.post_grad_passes(module, True, options={"enable": ["split_cat_atten_pass"]})


@pytest.mark.parametrize("size", [1, 4, 128, 300])
@pytest.mark.parametrize("dim", [1, -1])
def test_sections_are_those_of_the_pieces(size, dim):
    def program(x):
        return torch.cat([piece * 2 for piece in x.split(size, dim)], dim)

    x = torch.randn(2, 300)
    run = ran(normalization_aten_pass, program, x)
    (split,) = [n for n in run.module.graph.nodes if "split" in str(n.target)]
    assert split.target is aten.split_with_sizes.default
    assert sum(split.kwargs["split_sizes"]) == 300
    assert split.kwargs["dim"] == 1
    assert torch.equal(run.module(x), program(x))


# --------------------------------------------------------------------------------------------- products bound by memory


@pytest.mark.parametrize(
    "program",
    [
        lambda b, x, w: x @ w,
        lambda b, x, w: (x @ w).relu(),
        lambda b, x, w: torch.addmm(b, x, w),
        lambda b, x, w: torch.addmm(b, x, w, beta=0, alpha=3),
        lambda b, x, w: torch.addmm(b, x, w, beta=-2, alpha=2),
        lambda b, x, w: torch.bmm(x[None], w[None]),
        lambda b, x, w: x @ w.t().contiguous().t(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_a_row_times_a_matrix_is_a_sum(program, dtype):
    b, x, w = ((4 * torch.randn(shape)).to(dtype) for shape in ((5,), (1, 6), (6, 5)))
    run = ran(decompose_mem_bound_mm, program, b, x, w)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    assert not {aten.mm.default, aten.addmm.default, aten.bmm.default} & {*targets(run.module)}
    assert run.module(b, x, w).dtype is dtype
    close = {"rtol": 2e-2, "atol": 1e-1} if dtype.itemsize == 2 else {}
    torch.testing.assert_close(run.module(b, x, w), program(b, x, w), **close)


def test_a_bias_that_counts_for_nothing_may_be_no_number():
    b, x, w = torch.full((5,), torch.nan), torch.randn(1, 6), torch.randn(6, 5)
    program = lambda b, x, w: torch.addmm(b, x, w, beta=0)  # noqa: E731
    module = capture(program, [b, x, w], "aten")
    assert run_pass(decompose_mem_bound_mm, "post_grad", module).record.changed
    torch.testing.assert_close(module(b, x, w), x @ w)


@pytest.mark.parametrize(
    ("shapes", "program", "because"),
    [
        (((2, 6), (6, 5)), torch.mm, "not one row"),
        (((1, 6), (6, 300)), torch.mm, "not one row"),
        (((1, 1, 3000), (1, 3000, 2)), torch.bmm, "not one row"),
        (((1, 0), (0, 5)), torch.mm, "no elements"),
        (((5,), (1, 6), (6, 5)), lambda b, x, w: torch.addmm(b, x, w, alpha=0), "is not a nonzero number, or beta="),
    ],
)
def test_other_products_stay(shapes, program, because):
    run = ran(decompose_mem_bound_mm, program, *map(torch.randn, shapes))
    assert not run.record.changed
    assert because in run.record.rejects[0].reason


@pytest.mark.parametrize(
    ("op", "shapes", "fires"),
    [
        (torch.mm, ((10240, 5), (5, 5)), True),
        (torch.mm, ((10240, 32), (32, 5)), False),
        (torch.mm, ((1024, 5), (5, 5)), False),
        (torch.bmm, ((10240, 2, 64), (10240, 64, 3)), True),
        (torch.bmm, ((10240, 64, 64), (10240, 64, 3)), False),
    ],
)
def test_on_an_accelerator_many_small_products_are_sums(op, shapes, fires):
    """The meta device stands for one: values are not looked at."""
    module = capture(op, [torch.empty(shape, device="meta") for shape in shapes], "aten")
    assert run_pass(decompose_mem_bound_mm, "post_grad", module).record.changed == fires


def test_compiled_with_all_of_them():
    def program(x, w):
        rows = torch.cat([x[i] for i in range(4)])[None]
        return (rows @ w).relu() + torch.stack(x.unbind(1), 1).sum()

    torch._dynamo.reset()
    recorder = Recorder()
    off = ["unbind_cat_to_view_pass", "unbind_stack_pass", "unbind_stack_to_slices_pass"]
    fast = eductor.compile(program, engine="inductor", enable=FUSIONS, disable=off, instruments=[recorder], strict=True)
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(24, 5, requires_grad=True)
    torch.testing.assert_close(fast(x, w), program(x, w))
    fast(x, w).sum().backward()
    assert any(r.changed for r in recorder.records if r.name == "decompose_mem_bound_mm")
