"""canonicalize_aten_ir_passes: literals and quantized regions in one spelling."""

from __future__ import annotations

import operator

import pytest
import torch
from torch._higher_order_ops._invoke_quant import InvokeQuant

import eductor
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.joint.canonicalize_aten_ir_passes import canonicalize_aten_ir_passes as canonicalize
from eductor.pipeline import f32
from eductor.testing import assert_pass, assert_refused, check_contract

aten, hops = torch.ops.aten, torch.ops.higher_order
X, Y = torch.randn(4), torch.randn(4)


def test_contract():
    check_contract(canonicalize, "joint")


@pytest.mark.parametrize(
    "literal",
    [0.5, -0.0, float("inf"), float("nan"), 7, 2**40, True, 1e300, 0.1 + 0j],
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_literal_is_full_of_its_number(literal, shape):
    def program(x):
        return x * 2, torch.tensor(literal).reshape(shape).clone()

    run = run_pass(canonicalize, "joint", capture(program, [X], "aten"))
    assert run.record.changed
    assert not run.module.graph.find_nodes(op="get_attr")
    torch.testing.assert_close(run.module(X), program(X), rtol=0, atol=0, equal_nan=True)
    assert not run_pass(canonicalize, "joint", run.module).record.changed


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float64, torch.bool])
def test_dtypes_are_kept(dtype):
    run = run_pass(canonicalize, "joint", capture(lambda x: (torch.tensor(1, dtype=dtype), x * 1), [X], "aten"))
    (made,) = run.module.graph.find_nodes(op="call_function", target=aten.full.default)
    assert made.meta["val"].dtype is dtype
    assert run.module(X)[0].dtype is dtype


def test_a_literal_that_is_written_is_another_one_in_each_call():
    def program(x):
        count = torch.tensor(1.0)
        count.add_(x.sum())
        return count * x

    compiled = eductor.compile(program, engine="aten", verify="each", strict=True)
    for x in (X, Y):
        torch.testing.assert_close(compiled(x), program(x))


def test_what_is_no_literal_stays():
    assert_refused(canonicalize, lambda x: x * torch.tensor([1.0, 2.0]), [f32(2)], "more than one element")
    held = torch.tensor(2.0)
    run = run_pass(canonicalize, "joint", capture(lambda x: x * held, [X], "aten"))
    assert not run.record.changed  # whoever holds it may write it


def test_what_is_read_alike_stays():
    program = lambda x: (x.t() @ x.transpose(-1, 0).t() - 1).sum(-1) + aten.add.Scalar(x, 2)[0].sum()  # noqa: E731
    assert not run_pass(canonicalize, "joint", capture(program, [torch.randn(3, 3)], "aten")).record.changed


def test_a_scale_becomes_plain():
    assert_pass(
        canonicalize,
        lambda x: x / torch.tensor(8.0),
        lambda x: x / aten.full([], 8.0, dtype=torch.float32, device=torch.device("cpu")),
        [f32(4)],
    )


# ------------------------------------------------------------------------------------------------- quantized regions

quantized = InvokeQuant(codegen_low_precision=True)


def region(x, y):
    return (x.to(torch.float32) * 2 + y).relu()


class Kept(eductor.pipeline.Instrument):
    """Keeps what the pass makes of each graph."""

    def __init__(self):
        self.calls = []

    def after_pass(self, run):
        if run.step.name == canonicalize.name:
            self.calls += [n for n in run.module.graph.nodes if "invoke_quant" in str(n.target)]


@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize("scheme", [None, "nf4"])
def test_a_region_has_its_options_beside_it(engine, scheme):
    def program(x, y):
        return quantized(region, x, y, scheme=scheme).sin()

    kept = Kept()
    compiled = eductor.compile(program, engine=engine, instruments=[kept], verify="each", strict=True)
    torch.testing.assert_close(compiled(X, Y), program(X, Y))
    (call,) = kept.calls
    assert call.target is hops.invoke_quant
    assert call.meta["quant_options"] == quantized
    assert call.kwargs == ({} if scheme is None else {"scheme": scheme})
    assert isinstance(call.meta["val"], torch.Tensor)


def test_a_region_of_several_results_keeps_its_tuple():
    def program(x, y):
        a, b = quantized(lambda x, y: (x + 1, y * 2), x, y)
        return a * b

    kept = Kept()
    compiled = eductor.compile(program, engine="aten", instruments=[kept], verify="each", strict=True)
    torch.testing.assert_close(compiled(X, Y), program(X, Y))
    (call,) = kept.calls
    assert call.target is hops.invoke_quant
    assert {user.target for user in call.users} == {operator.getitem}


def test_a_region_in_training():
    kept = Kept()
    program = lambda x, y: quantized(region, x, y).sin()  # noqa: E731
    compiled = eductor.compile(program, engine="aten", instruments=[kept], verify="each", strict=True)
    x, other = X.clone().requires_grad_(), X.clone().requires_grad_()
    compiled(x, Y).sum().backward()
    program(other, Y).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    assert {call.target for call in kept.calls} == {hops.invoke_quant}


def test_options_that_are_not_known_are_left():
    kept = []

    class Unknown(eductor.pipeline.Instrument):
        def before_pipeline(self, stage, module):
            if stage == "joint":
                (call,) = module.graph.find_nodes(op="call_function", target=hops.invoke_quant_packed)
                call.kwargs = {k: v for k, v in call.kwargs.items() if k != "quant_options"}
                kept.append(run_pass(canonicalize, "joint", module).record)

    eductor.compile(lambda x, y: quantized(region, x, y).sin(), engine="aten", instruments=[Unknown()])(X, Y)
    assert not kept[0].changed
    assert kept[0].rejects[0].reason == "its options are not known"
