"""addmm_fusion and unfuse_bias_add: sums and matrix products, together where that is faster and apart where it is not."""

from __future__ import annotations

import itertools

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.addmm_fusion import addmm_fusion
from eductor.passes.post_grad.unfuse_bias_add import unfuse_bias_add
from eductor.verification.verifier import Verifier

aten = torch.ops.aten
FORCED = addmm_fusion.configured(force=True)


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def ran(pass_, program, *inputs, dynamic=False):
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    verifier = Verifier([x.clone() for x in inputs])
    run = run_pass(pass_, "post_grad", module, verifier)
    assert not verifier.notes, verifier.notes
    assert not run_pass(pass_, "post_grad", module).record.changed
    return run


def close(run, program, *inputs):
    result, eager = run.module(*inputs), program(*inputs)
    torch.testing.assert_close(result, eager, equal_nan=True)
    assert result.stride() == eager.stride()


def reasons(run):
    assert not run.record.changed, run.after
    return [r.reason for r in run.record.rejects]


A, B = torch.randn(4, 3), torch.randn(3, 5)


@pytest.mark.parametrize("shape", [(5,), (1,), (4, 5), (1, 5), (4, 1), ()])
@pytest.mark.parametrize("alpha", [1, 2, -0.5])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_product_and_a_sum_are_one(shape, alpha, is_first):
    """`alpha` scales the second operand of a sum: the bias or the product."""

    def program(a, b, x):
        return torch.add(a @ b, x, alpha=alpha) if is_first else torch.add(x, a @ b, alpha=alpha)

    x = torch.randn(shape)
    for dynamic in (False, True):
        run = ran(FORCED, program, A, B, x, dynamic=dynamic)
        assert dynamic or targets(run.module) == [aten.addmm.default]
        close(run, program, A, B, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32])
def test_in_any_dtype(dtype):
    a, b, x = ((9 * t).to(dtype) for t in (A, B, torch.randn(5)))
    run = ran(FORCED, lambda a, b, x: torch.add(a @ b, x, alpha=3), a, b, x)
    assert targets(run.module) == [aten.addmm.default]


@pytest.mark.parametrize(("rows", "inner", "columns"), [(0, 3, 5), (4, 0, 5), (4, 3, 0), (1, 1, 1)])
def test_of_no_elements(rows, inner, columns):
    a, b, x = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(columns)
    for pass_, program in (
        (FORCED, lambda a, b, x: a @ b + x),
        (unfuse_bias_add, lambda a, b, x: torch.addmm(x, a, b).relu()),
    ):
        close(ran(pass_, program, a, b, x), program, a, b, x)


def test_numbers_that_are_none():
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1.0])
    a = A.clone()
    a[0, 0], a[1, 1] = torch.inf, torch.nan
    for pass_, program in (
        (FORCED, lambda a, b, x: a @ b + x),
        (unfuse_bias_add, lambda a, b, x: torch.addmm(x, a, b, beta=2).abs()),
        (unfuse_bias_add, lambda a, b, x: torch.addmm(x, a, b, beta=0).abs()),
        (unfuse_bias_add, lambda a, b, x: torch.addmm(x, a, b, beta=0, alpha=-3).abs()),
    ):
        module = capture(program, [a, B, x], "aten")
        assert run_pass(pass_, "post_grad", module).record.changed
        torch.testing.assert_close(module(a, B, x), program(a, B, x), equal_nan=True)


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda a, b, x: torch.add(a @ b, x, alpha=0), "alpha=0"),
        (lambda a, b, x: torch.add(x, a @ b, alpha=0), "alpha=0"),
        (lambda a, b, x: a @ b + x.double(), "torch.float64"),
        (lambda a, b, x: a @ b + x.view(1, 1, 5), "broadcast"),
        (lambda a, b, x: a[:1] @ b + a.new_ones(4, 5), "broadcast"),
        (lambda a, b, x: x.expand(4, 5).t().contiguous().t() + a @ b, "memory layout"),
        (lambda a, b, x: (lambda y: y + y)(a @ b), "used elsewhere"),
        (lambda a, b, x: (lambda y: (y + x, y))(a @ b), "also returned"),
    ],
)
def test_other_sums_stay(program, because):
    assert because in reasons(ran(FORCED, program, A, B, torch.randn(5)))[0]


def test_what_pays_depends_on_device_and_engine():
    def program(a, b, x):
        return a @ b + x

    module = capture(program, [A, B, torch.randn(5)], "aten")
    assert "on the CPU" in reasons(run_pass(addmm_fusion, "post_grad", module))[0]
    eductor.post_grad_passes(module, True, options={"engine": "aten", "strict": True})
    assert targets(module) == [aten.addmm.default]
    module = capture(program, [t.bfloat16() for t in (A, B, torch.randn(5))], "aten")
    eductor.post_grad_passes(module, True, options={"engine": "aten", "strict": True})
    assert targets(module) == [aten.mm.default, aten.add.Tensor]
    # The meta device stands for an accelerator: values are not looked at.
    given = [t.to("meta") for t in (A, B, torch.randn(5))]
    module = capture(program, given, "aten")
    assert run_pass(addmm_fusion, "post_grad", module).record.changed
    module = capture(lambda a, b, x: (a @ b + x).relu(), given, "aten")
    assert "fuses into what reads it" in reasons(run_pass(addmm_fusion, "post_grad", module))[0]


# --------------------------------------------------------------------------------------------------------- apart again


@pytest.mark.parametrize(("alpha", "beta"), itertools.product([1, 2.5], [1, -2, 0]))
@pytest.mark.parametrize("shape", [(5,), (1,), (4, 5), (4, 1), ()])
def test_a_bias_is_added_where_the_product_is_read(alpha, beta, shape):
    def program(x, a, b):
        return torch.addmm(x, a, b, alpha=alpha, beta=beta).relu()

    x = torch.randn(shape)
    for dynamic in (False, True):
        run = ran(unfuse_bias_add, program, x, A, B, dynamic=dynamic)
        assert dynamic or aten.addmm.default not in targets(run.module)
        close(run, program, x, A, B)


@pytest.mark.parametrize(
    "read",
    [
        lambda y: y.relu(),
        lambda y: y.view(2, 2, 5).permute(1, 0, 2).tanh(),
        lambda y: y.sum(1),
        lambda y: y.sin() + y.view(20).cos().view(4, 5),
        lambda y: y.split([2, 3], 1)[0] * 2,
    ],
)
def test_what_reads_it_may_stand_behind_views(read):
    run = ran(unfuse_bias_add, lambda x, a, b: read(torch.addmm(x, a, b)), torch.randn(5), A, B)
    assert aten.mm.default in targets(run.module)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64])
def test_apart_in_any_dtype(dtype):
    x, a, b = ((9 * t).to(dtype) for t in (torch.randn(5), A, B))
    run = ran(unfuse_bias_add, lambda x, a, b: torch.addmm(x, a, b, beta=2, alpha=3).abs(), x, a, b)
    assert aten.addmm.default not in targets(run.module)


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x, a, b: torch.addmm(x, a, b), "leaves the graph"),
        (lambda x, a, b: torch.addmm(x, a, b, alpha=0).abs(), "alpha=0"),
        (lambda x, a, b: torch.addmm(x, a, b).view(20), "leaves the graph"),
        (lambda x, a, b: torch.addmm(x, a, b) @ b.t(), "not all that reads it"),
        (lambda x, a, b: (lambda y: (y.relu(), y.sort().values))(torch.addmm(x, a, b)), "not all that reads it"),
        (lambda x, a, b: torch.addmm(x.bfloat16(), a.bfloat16(), b.bfloat16()).relu(), "rounded to torch.bfloat16"),
        (lambda x, a, b: torch.addmm(x.half(), a.half(), b.half()).relu(), "rounded to torch.float16"),
    ],
)
def test_other_products_stay_as_they_are(program, because):
    assert because in reasons(ran(unfuse_bias_add, program, torch.randn(5), A, B))[0]


@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_in_training(engine, dtype):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).to(dtype)
    torch._dynamo.reset()
    recorder = Recorder()
    fast = eductor.compile(model, engine=engine, instruments=[recorder], strict=True)
    x = torch.randn(5, 6, dtype=dtype)
    results = []
    for fn in (fast, model):
        model.zero_grad()
        y = fn(x)
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
    made = [m for r in recorder.records if r.name == "unfuse_bias_add" for m in r.matches]
    assert len(made) == (1 if engine == "inductor" and dtype is torch.float32 else 0)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-2)
