"""group_batch_fusion_passes after the partition: products and pointwise operators, alike in all that counts."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.errors import PassFailed
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.batching import POST_GRAD_RULES
from eductor.passes.post_grad.group_batch_fusion_passes import group_batch_fusion_passes
from eductor.verification.verifier import Verifier

aten = torch.ops.aten
CORE = {aten.narrow, aten.stack, aten.transpose, aten.movedim, aten.flatten, aten.unflatten, aten.reshape, aten.linear}


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def ran(program, *inputs, dynamic=False):
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    verifier = Verifier([x.clone() for x in inputs])
    run = run_pass(group_batch_fusion_passes, "post_grad", module, verifier)
    assert not verifier.notes, verifier.notes
    assert not run_pass(group_batch_fusion_passes, "post_grad", module).record.changed
    return run


def fires(program, *inputs, **how):
    run = ran(program, *inputs, **how)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    made = {t.overloadpacket for t in targets(run.module) if hasattr(t, "overloadpacket")}
    assert not made & CORE, "only what functional graphs consist of"
    result, eager = run.module(*inputs), program(*inputs)
    torch.testing.assert_close(result, eager)
    assert result.stride() == eager.stride()
    return run


X, W = torch.randn(4, 32), torch.randn(4, 8, 8)


def test_the_rules_have_the_documented_names():
    pointwise = {f"batch_aten_{name}" for name in ("tanh", "sigmoid", "relu", "add", "sub", "mul", "div")}
    assert {rule.name for rule in POST_GRAD_RULES} == {"batch_linear_post_grad"} | pointwise


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: torch.cat([p @ w[i] for i, p in enumerate(x.split(8, 1))], 1),
        lambda x, w: torch.cat([p @ w[0] for p in x.split(8, 1)], 1),
        lambda x, w: torch.cat([torch.addmm(w[0, 0], p, w[i]) for i, p in enumerate(x.split(8, 1))], 1),
        lambda x, w: torch.cat([torch.addmm(w[i, 0], p, w[i]) for i, p in enumerate(x.split(8, 1))], 1),
        lambda x, w: torch.cat([torch.addmm(p, p, w[i]) for i, p in enumerate(x.split(8, 1))], 1),
        lambda x, w: torch.cat([torch.addmm(p, p, w[i], beta=-1, alpha=0.5) for i, p in enumerate(x.split(8, 1))], 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_of_the_same_form_are_one(program, dtype):
    run = fires(program, X.to(dtype), W.to(dtype))
    products = [t for t in targets(run.module) if t.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm")]
    assert len(products) == 1


@pytest.mark.parametrize(
    "step",
    [
        lambda p: p.tanh(),
        lambda p: p.sigmoid(),
        lambda p: p.relu(),
        lambda p: torch.add(p, p, alpha=3),
        lambda p: torch.sub(p, 2, alpha=-2),
        lambda p: p * 3,
        lambda p: torch.div(p, 2, rounding_mode="floor"),
        lambda p: torch.div(p, 2),
    ],
)
def test_pointwise_operators_carry_a_batch_on(step):
    def program(x, w):
        return torch.cat([step(p @ w[i]) + 1 for i, p in enumerate(x.split(8, 1))], 1)

    run = fires(program, X, W)
    assert len(targets(run.module)) <= 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda p: torch.sub(p, p, alpha=2), lambda p: torch.sub(p, p, alpha=3)),
        (lambda p: torch.add(p, 1), lambda p: torch.add(p, 1, alpha=2)),
        (lambda p: torch.div(p, 3, rounding_mode="floor"), lambda p: torch.div(p, 3, rounding_mode="trunc")),
        (lambda p: torch.div(p, 3), lambda p: torch.div(p, 3, rounding_mode="trunc")),
        (lambda p: p * 2, lambda p: p * 2.5),
    ],
)
def test_calls_that_differ_in_an_argument_are_no_batch(one, other):
    """The products are one; what follows differs from piece to piece, and is right."""

    def program(x, w):
        pieces = [p @ w[i] for i, p in enumerate(x.split(8, 1))]
        return torch.cat([(one if i % 2 else other)(p) for i, p in enumerate(pieces)], 1)

    fires(program, X, W)


def test_products_that_differ_in_dtype_or_scale_are_no_batch():
    def program(x, w):
        a, b, c, d = x.split(8, 1)
        first = [torch.addmm(a, a, w[0], beta=2), torch.addmm(b, b, w[1])]
        second = [c.double() @ w[2].double(), d @ w[3]]
        return torch.cat([*first, *(s.float() for s in second)], 1)

    run = ran(program, X, W)
    assert not run.record.changed, run.after


def test_results_that_leave_have_memory_of_their_own():
    def program(x, w):
        return [p @ w[i] for i, p in enumerate(x.split(8, 1))]

    module = capture(program, [X, W], "aten")
    run_pass(group_batch_fusion_passes, "post_grad", module)
    results = module(X, W)
    assert len({r.untyped_storage().data_ptr() for r in results}) == 4


def test_symbolic_and_zero_sizes():
    def program(x, w):
        return torch.cat([p @ w[i] for i, p in enumerate(x.split(8, 1))], 1)

    run = ran(program, X, W, dynamic=True)
    torch.testing.assert_close(run.module(X, W), program(X, W))
    empty = torch.randn(0, 32)
    assert not ran(program, empty, W).record.changed


def test_a_rule_is_left_out_by_name():
    def program(x, w):
        return torch.cat([p @ w[i] for i, p in enumerate(x.split(8, 1))], 1)

    without = group_batch_fusion_passes.configured(without=["batch_linear_post_grad"])
    assert not run_pass(without, "post_grad", capture(program, [X, W], "aten")).record.changed
    wrong, module = group_batch_fusion_passes.configured(without=["batch_linear_pst"]), capture(program, [X, W], "aten")
    with pytest.raises(PassFailed, match="batch_linear_pst"):
        run_pass(wrong, "post_grad", module)


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_compiled_in_training(engine):
    def program(x, w):
        return torch.cat([torch.tanh(p @ w[i]) for i, p in enumerate(x.split(8, 1))], 1).sum()

    torch._dynamo.reset()
    recorder = Recorder()
    fast = eductor.compile(program, engine=engine, instruments=[recorder], strict=True)
    results = []
    for fn in (fast, program):
        given = [X.clone().requires_grad_(), W.clone().requires_grad_()]
        y = fn(*given)
        y.backward()
        results.append([y.detach(), *(g.grad for g in given)])
    records = [r for r in recorder.records if r.address == "post_grad/group_batch_fusion_passes"]
    assert any(m.rule == "batch_linear_post_grad" for r in records for m in r.matches)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
