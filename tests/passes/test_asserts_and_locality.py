"""remove_assert_ops and reorder_for_locality."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.graph import capture, is_sorted
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.remove_assert_ops import remove_assert_ops
from eductor.passes.post_grad.reorder_for_locality import reorder_for_locality
from eductor.verification.verifier import Verifier

aten = torch.ops.aten


def names(module):
    return [n.target.overloadpacket.__name__ for n in module.graph.nodes if n.op == "call_function"]


# ------------------------------------------------------------------------------------------------------------- checks


def check(*args, **kwargs):
    """Tracing refuses checks that fail: the node gets its arguments afterwards, as if a pass had changed the tensor."""

    def program(x):
        aten._assert_tensor_metadata(x)
        return x + 1

    module = capture(program, [torch.randn(2, 3)], "aten")
    (node,) = module.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default)
    node.args, node.kwargs = (node.args[0], *args), kwargs
    return run_pass(remove_assert_ops, "post_grad", module).record


def test_checks_that_hold_go():
    assert check().changed
    assert check(None, None, torch.float32).changed
    assert check([2, 3], [3, 1]).changed
    assert check(dtype=torch.float32, device=torch.device("cpu"), layout=torch.strided).changed


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"size": [2, 4]}, "size"),
        ({"stride": [1, 2]}, "stride"),
        ({"dtype": torch.float64}, "dtype"),
        ({"device": torch.device("cuda")}, "device"),
        ({"layout": torch.sparse_coo}, "layout"),
    ],
)
def test_checks_that_fail_stay(arguments, what):
    record = check(**arguments)
    assert not record.changed
    assert f"its {what} is not known" in record.rejects[0].reason


def test_other_checks_stay():
    def program(x):
        aten._assert_async.msg((x < 100).all(), "too large")
        return x + 1

    module = capture(program, [torch.randn(3)], "aten")
    assert not run_pass(remove_assert_ops, "post_grad", module).record.changed
    assert "_assert_async" in names(module)


def test_a_check_of_a_conversion_under_autocast():
    recorder = Recorder()

    def program(a, b):
        with torch.autocast("cpu"):
            return (a @ b).relu()

    fast = eductor.compile(program, engine="aten", instruments=[recorder], strict=True)
    a, b = torch.randn(4, 3), torch.randn(3, 5)
    torch.testing.assert_close(fast(a, b), program(a, b))


# ----------------------------------------------------------------------------------------------------------- locality


def reordered(program, *inputs, dynamic=False):
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    verifier = Verifier([x.clone() for x in inputs])
    run = run_pass(reorder_for_locality, "post_grad", module, verifier)
    assert not verifier.notes
    assert is_sorted(module.graph)
    assert not run_pass(reorder_for_locality, "post_grad", module).record.changed
    return names(module) if run.record.changed else None


@pytest.mark.parametrize("dynamic", [False, True])
def test_values_are_computed_right_before_their_users(dynamic):
    def program(x, y):
        a, b, c, d = x.cos(), y.sin(), x.tan(), y.exp()
        return (a * b + c) * d

    x, y = torch.randn(4), torch.randn(4)
    assert reordered(program, x, y, dynamic=dynamic) == ["cos", "sin", "mul", "tan", "add", "exp", "mul"]


def test_chains_go_along():
    def program(x):
        late = x.tan().tanh().view(2, 2)
        return x.sin().cos().view(2, 2) + late, x + 1

    assert reordered(program, torch.randn(4)) == ["sin", "cos", "view", "tan", "tanh", "view", "add", "add"]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.sin().cos() + 1,
        lambda x: (lambda s: x.cos().exp() + s)(x.sin().sum(0)),
        lambda x: (lambda r: x.cos().exp() + r)(torch.rand_like(x)),
        lambda x: (lambda p: x.cos().exp() + p[0])(x.split(2)),
    ],
)
def test_what_would_keep_more_or_must_stay_stays(program):
    assert reordered(program, torch.randn(2, 4)) is None


def test_draws_keep_their_order():
    def program(x):
        a, b = torch.rand_like(x), torch.rand_like(x)
        return x.sin() * b + a * x.cos()

    module = capture(program, [x := torch.randn(4)], "aten")
    run_pass(reorder_for_locality, "post_grad", module)
    torch.manual_seed(0)
    result = module(x)
    torch.manual_seed(0)
    assert torch.equal(result, program(x))


def test_nothing_moves_past_a_write():
    def program(x, y):
        a = x.sin()
        x.copy_(y)
        return a + x.cos()

    torch._dynamo.reset()
    with torch.no_grad():
        for engine in ("aten", "inductor"):
            fast = eductor.compile(program, engine=engine, strict=True)
            x, y = torch.randn(4), torch.randn(4)
            p, q = x.clone(), x.clone()
            torch.testing.assert_close(fast(p, y), program(q, y))
            assert torch.equal(p, q)


def test_only_in_inference():
    recorder = Recorder()
    module = capture(lambda x: (lambda c: x.cos().exp() * 2 + c)(x.sin()), [torch.randn(4)], "aten")
    eductor.post_grad_passes(module, False, options={"instruments": [recorder]})
    (record,) = [r for r in recorder.records if r.name == "reorder_for_locality"]
    assert record.status == "skipped"
