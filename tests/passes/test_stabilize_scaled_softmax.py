"""stabilize_scaled_softmax: the scale after the difference, non-finite values as in eager, and what is left alone."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.joint.stabilize_scaled_softmax import stabilize_scaled_softmax
from eductor.testing import check_contract

aten, prims = torch.ops.aten, torch.ops.prims


def softmax(x, dim=-1):
    """As code generators see it."""
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def rewritten(program, *inputs, dynamic=False):
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    assert run_pass(stabilize_scaled_softmax, "joint", module).record.changed
    assert not run_pass(stabilize_scaled_softmax, "joint", module).record.changed
    return module


def left(program, *inputs):
    run = run_pass(stabilize_scaled_softmax, "joint", capture(program, list(inputs), "aten"))
    assert not run.record.changed
    return [r.reason for r in run.record.rejects]


def test_keeps_its_contract():
    check_contract(stabilize_scaled_softmax, "joint")


def test_it_is_off_by_default():
    assert not stabilize_scaled_softmax.on


SCALED = [
    lambda x: softmax(x * 0.3),
    lambda x: softmax(0.3 * x),
    lambda x: softmax(x / 3.3),
    lambda x: softmax(x / 3),
    lambda x: softmax(x * -0.3),
    lambda x: softmax(x / -3.3),
    lambda x: softmax(x * 0.3, 0),
    lambda x: softmax(x * 0.3, (0, 1)),
    lambda x: softmax(x * torch.full([], 0.3)),
    lambda x: softmax(x / torch.full([1, 1], 3.3)),
    lambda x: softmax(prims.convert_element_type(x * 0.3, torch.float64)),
]


@pytest.mark.parametrize("program", SCALED)
def test_the_scale_comes_last_and_nothing_is_added(program):
    x = torch.randn(5, 7) * 30
    before = targets(capture(program, [x], "aten"))
    module = rewritten(program, x)
    after = targets(module)
    assert len(after) <= len(before)
    scale = next(n for n in module.graph.nodes if n.target in (aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar))
    assert [u.target for u in scale.users] == [aten.exp.default]
    torch.testing.assert_close(module(x), program(x))


@pytest.mark.parametrize("program", SCALED)
def test_what_is_not_finite_is_as_in_eager(program):
    special = [torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 0.0, 1.0]
    rows = torch.tensor(list(itertools.product(special, repeat=3)))
    module = rewritten(program, rows)
    for x in (rows, torch.full((3, 3), -torch.inf), torch.full((3, 3), torch.inf), rows[-60:]):
        result, eager = module(x), program(x)
        assert torch.equal(result.isnan(), eager.isnan())
        assert torch.equal(result.nan_to_num(2.0), eager.nan_to_num(2.0)) or torch.allclose(
            result.nan_to_num(2.0), eager.nan_to_num(2.0), rtol=1e-6, atol=0
        )


def test_half_precision_is_shifted_in_the_dtype_of_the_softmax():
    """As a decomposed softmax of halves is: the product is of halves, the rest is not."""
    x = torch.tensor([[65504.0, -65504.0, 1.0], [torch.inf, 0, 1], [1.0, 2.0, 3.0]]).half()

    def program(x):
        return softmax(prims.convert_element_type(x * 0.125, torch.float32)).half()

    module = rewritten(program, x)
    torch.testing.assert_close(module(x), program(x), equal_nan=True)


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x: softmax(x * 3.0), "may overflow"),
        (lambda x: softmax(x / 0.5), "may overflow"),
        (lambda x: softmax(x / -0.5), "may overflow"),
        (lambda x: softmax(x * 1e-38), "so small"),
        (lambda x: softmax(x * 0.0), "scaled by 0.0"),
        (lambda x: softmax(x * math.inf), "scaled by inf"),
        (lambda x: softmax(x * math.nan), "scaled by nan"),
        (lambda x: softmax(x * x), "not scaled by a known number"),
        (lambda x: softmax(x * x.sum()), "not scaled by a known number"),
        (lambda x: softmax(x * torch.full([2, 5, 7], 0.5)), "differ in shape"),
        (lambda x: softmax(x * torch.full([1], 0.5, dtype=torch.float64)), "differ in dtype"),
        (lambda x: (x * 0.5).amax(-1), "no softmax follows"),
        (lambda x: (lambda s: s.cos() - s.amax(-1, keepdim=True))(x * 0.5), "no softmax follows"),
        (lambda x: (lambda s: torch.sub(s, s.amax(-1, True), alpha=2).exp())(x * 0.5), "no softmax follows"),
        (lambda x: (lambda s: (s - s.amax(-1, True)).exp().log() + s.amax(-1, True))(x * 0.5), None),
        (lambda x: (lambda s: softmax(s) + s)(x * 0.5), "used elsewhere"),
        (
            lambda x: (lambda s: (lambda d: d - d.exp().sum(-1, True).log())(s - s.amax(-1, True)))(x * 0.5),
            "used outside the softmax",
        ),
        (lambda x: softmax(x), None),
        (lambda x: softmax(x + 2), None),
        (lambda x: softmax(torch.div(x, 2.0, rounding_mode="floor")), None),
        (lambda x: (x * 0.5).softmax(-1), None),
    ],
)
def test_what_is_left_alone(program, because):
    reasons = left(program, torch.randn(5, 7))
    if because is None:
        assert not any("number" in r for r in reasons)
    else:
        assert because in reasons[0]


def test_symbolic_shapes_need_no_guard():
    module = capture(lambda x: softmax(x * 0.3), [torch.randn(4, 6)], "aten", dynamic=True)
    env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    guards = len(env.guards)
    assert run_pass(stabilize_scaled_softmax, "joint", module).record.changed
    assert len(env.guards) == guards
    x = torch.randn(7, 5)
    torch.testing.assert_close(module(x), (x * 0.3).softmax(-1))


def test_it_is_more_exact_where_rows_have_a_large_number_in_common():
    x = torch.randn(64, 256) * 30 + 1e5
    exact = (x.double() * 0.3).softmax(-1)
    module = rewritten(lambda x: softmax(x * 0.3), x)
    error, before = (((y.double() - exact).abs() / exact.clamp_min(1e-6)).max() for y in (module(x), softmax(x * 0.3)))
    assert error < before / 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_in_training(dtype):
    torch._dynamo.reset()
    recorder = Recorder()
    fast = eductor.compile(
        lambda x: (x * 0.3).softmax(-1),
        engine="inductor",
        joint_custom_post_pass=[stabilize_scaled_softmax],
        instruments=[recorder],
        strict=True,
    )
    given = (torch.randn(6, 33) * 9).to(dtype)
    results = []
    for fn in (fast, lambda x: (x * 0.3).softmax(-1)):
        x = given.clone().requires_grad_()
        result = fn(x)
        (result * torch.linspace(-1, 2, 33)).sum().backward()
        results.append((result.detach(), x.grad))
    changed = [r for r in recorder.records if r.name == "stabilize_scaled_softmax" and r.status == "changed"]
    assert [len(r.matches) for r in changed] == [1]
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
