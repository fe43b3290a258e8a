"""constant_fold_uniform_value: what is one number everywhere goes, and nothing else does."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.functional.remove_noop_ops import remove_noop_ops
from eductor.passes.joint.constant_fold_uniform_value import constant_fold_uniform_value as fold
from eductor.pipeline import b8, f32, i64
from eductor.testing import assert_pass, assert_refused, check_contract

aten, prims = torch.ops.aten, torch.ops.prims
f16, bf16, f64 = torch.float16, torch.bfloat16, torch.float64


def test_contract():
    check_contract(fold, "joint")


def full(shape, number, dtype=torch.float32):
    return aten.full(shape, number, dtype=dtype, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("before", "after", "inputs"),
    [
        (lambda x: x * (torch.ones(4) * 3 + 1), lambda x: x * full([4], 4.0), [f32(4)]),
        (lambda x: x * torch.full((6,), 3.0).view(2, 3), lambda x: x * full([2, 3], 3.0), [f32(2, 3)]),
        (lambda x: x * -torch.full((6,), 3.0)[2:5], lambda x: x * full([3], -3.0), [f32(3)]),
        (lambda x: x * torch.ones(2, dtype=torch.int64).to(torch.float32) * 2, lambda x: x * 2, [f32(2)]),
        (lambda x: x * torch.full((2,), 0.5, dtype=f64).to(torch.float32), lambda x: x * full([2], 0.5), [f32(2)]),
        (lambda x: x / torch.full([], 8.0).sqrt().reciprocal().mul(0).add(2.0), lambda x: x / full([], 2.0), [f32(2)]),
        (
            lambda x: torch.where(x > 0, torch.where(torch.ones(2) > 0, torch.full((2,), 5.0), x), x),
            lambda x: torch.where(x > 0, full([2], 5.0), x),
            [f32(2)],
        ),
        (lambda x: x.sin() * torch.where(x > 0, torch.ones(2), torch.ones(2)), lambda x: x.sin(), [f32(2)]),
        (lambda x: x.new_full((2,), 3) + x.new_zeros(2), lambda x: full([2], 3.0), [f32(2)]),
        (lambda x: torch.full_like(x, 3) / torch.ones_like(x), lambda x: full([2], 3.0), [f32(2)]),
        (lambda x: x * torch.zeros(4, dtype=torch.int64), lambda x: full([4], 0, torch.int64), [i64(4)]),
        (lambda m: m & torch.zeros(4, dtype=torch.bool), lambda m: full([4], False, torch.bool), [b8(4)]),
        (lambda m: torch.logical_or(torch.ones(4), m), lambda m: full([4], True, torch.bool), [b8(4)]),
    ],
)
def test_uniform_results_are_folded(before, after, inputs):
    run = run_pass(fold, "joint", capture(before, [s.make(0) for s in inputs], "aten"))
    assert run.record.changed
    made = [s.make(1) for s in inputs]
    assert torch.equal(run.module(*made), before(*made))
    kept = {str(n.target) for n in run.module.graph.nodes if n.op == "call_function"}
    wanted = {str(n.target) for n in capture(after, made, "aten").graph.nodes if n.op == "call_function"}
    assert kept <= wanted, f"{kept} are left, {wanted} would do"


@pytest.mark.parametrize(
    ("before", "after", "inputs"),
    [
        (lambda x: (x.sin() - torch.zeros(2)).cos(), lambda x: x.sin().cos(), [f32(2)]),
        (lambda x: (x.sin() - 0).cos(), lambda x: x.sin().cos(), [f32(2)]),
        (lambda x: (x.sin() + -0.0).cos(), lambda x: x.sin().cos(), [f32(2)]),
        (lambda x: (torch.full((2,), -0.0) + x.sin()).tan(), lambda x: x.sin().tan(), [f32(2)]),
        (lambda x: (x.sin() * torch.ones(2)).cos(), lambda x: x.sin().cos(), [f32(2)]),
        (lambda x: (torch.ones([]) * x.sin()).cos(), lambda x: x.sin().cos(), [f32(2)]),
        (lambda x: (x.sin() * 1.0).cos(), lambda x: x.sin().cos(), [f32(2)]),
        (lambda x: (x.sin() / torch.ones(2)).cos(), lambda x: x.sin().cos(), [f32(2)]),
        (lambda x: 1 / x, lambda x: x.reciprocal(), [f32(2)]),
        (lambda x: (x * torch.ones(1).expand(2)).cos(), lambda x: x.cos(), [f32(2)]),
        (lambda x: (x * 3 + 0) * 5, lambda x: x * 3 * 5, [i64(2)]),
        (lambda x: (x.exp() + torch.zeros(2)).sin(), lambda x: x.exp().sin(), [f32(2)]),
        (lambda x: (x * x + torch.zeros(2)).sin(), lambda x: (x * x).sin(), [f32(2)]),
        (lambda x: (x.sin() + torch.zeros(2)).exp(), lambda x: x.sin().exp(), [f32(2)]),
        (lambda m, x: torch.where(m | torch.zeros(2, dtype=torch.bool), x, -x), torch_where := (lambda m, x: torch.where(m, x, -x)), [b8(2), f32(2)]),
        (lambda m, x: torch.where(m & torch.ones(1, 2, dtype=torch.bool)[0], x, -x), torch_where, [b8(2), f32(2)]),
        (lambda x: torch.where(torch.ones(2, dtype=torch.bool), x.sin(), x).cos(), lambda x: x.sin().cos(), [f32(2)]),
    ],
)  # fmt: skip
def test_neutral_elements_go(before, after, inputs):
    assert_pass(fold, before, after, inputs)


@pytest.mark.parametrize(
    ("program", "inputs", "because"),
    [
        (lambda x: x * torch.zeros(2), [f32(2)], "may be NaN or -0.0"),
        (lambda x: x * 0, [f32(2)], "may be NaN or -0.0"),
        (lambda x: (x + torch.zeros(2)).sin(), [f32(2)], "turns -0.0 into 0.0"),
        (lambda x: (x + 0.0).sin(), [f32(2)], "turns -0.0 into 0.0"),
        (lambda x: (x - (-0.0)).sin(), [f32(2)], "turns -0.0 into 0.0"),
        (lambda x: (lambda y: y.exp() + y)(x + torch.zeros(2)), [f32(2)], "turns -0.0 into 0.0"),
        (lambda x: x - torch.zeros(2), [f32(2)], "an output of its own"),
        (lambda x: x * 1, [f32(2)], "an output of its own"),
        (lambda x: (lambda y: (y, y * 1))(x.sin()), [f32(2)], "another output"),
        (lambda x: (x * torch.ones(3, 2)).sin(), [f32(2)], "shape"),
        (lambda x: (x * torch.ones(2, dtype=f64)).sin(), [f32(2)], "dtype"),
        (lambda x: (x / 1).sin(), [i64(2)], "dtype"),
        (lambda x: aten.sub(x.sin(), torch.zeros(2), alpha=-1).sin(), [f32(2)], "it also scales or rounds"),
        (lambda x: torch.div(x, 1.0, rounding_mode="floor").sin(), [f32(2)], "it also scales or rounds"),
        (lambda x: (torch.complex(x, x) * 1).abs(), [f32(2)], "complex"),
        (lambda x: x + torch.ones([]).expand(2, 2), [f32(2)], "it is not row-major"),
        (lambda x: x * (torch.ones(2, 3).t() * 2), [f32(3, 2)], "it is not row-major"),
        (
            lambda x: x * torch.full((2,), 0x7FC00001, dtype=torch.int32).view(torch.float32),
            [f32(2)],
            "no Python number represents",
        ),
    ],
)
def test_what_is_seen_stays(program, inputs, because):
    assert_refused(fold, program, inputs, because)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * torch.ones(2).exp(),  # not the same bits on every device
        lambda x: x * torch.ones(2).cumsum(0),
        lambda x: x * torch.cat([torch.ones(1), torch.zeros(1)]),
        lambda x: x + torch.full((2,), float("inf")).to(torch.int64).neg(),  # for the device to say
        lambda x: x * torch.add(torch.ones(2), torch.ones(2), alpha=0.1),
        lambda x: x * torch.full((2,), 0.1, dtype=bf16).mul(0.3).float(),  # rounded before or after
        lambda x: x * torch.maximum(torch.zeros(2), torch.full((2,), -0.0)),
        lambda x: torch.zeros(2) - x,
        lambda x: x * (torch.zeros(2) / torch.zeros(2)),  # which NaN it is differs
    ],
)
def test_is_no_candidate(program):
    assert not run_pass(fold, "joint", capture(program, [torch.randn(2)], "aten")).record.changed


def test_views_that_leave_stay_views_of_what_they_were():
    def program(x):
        z = torch.zeros(4)
        return z.view(2, 2), x.sin()

    assert_refused(fold, program, [f32(2)], "it escapes as a view")

    def both(x):
        z = torch.zeros(4) + 1
        return z, z.view(2, 2), x

    module = run_pass(fold, "joint", capture(both, [torch.ones(2)], "aten")).module
    one, two, _ = module(torch.ones(2))
    assert one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool, f16, bf16, f64])
def test_dtypes_are_kept(dtype):
    def program(x):
        return (torch.ones(3, dtype=dtype) + torch.ones(3, dtype=dtype)) * torch.ones(3, dtype=dtype), x

    run = run_pass(fold, "joint", capture(program, [torch.ones(2)], "aten"))
    assert [str(n.target) for n in run.module.graph.nodes if n.op == "call_function"] == ["aten.full.default"]
    assert run.module(torch.ones(2))[0].dtype is dtype
    assert torch.equal(run.module(torch.ones(2))[0], program(torch.ones(2))[0])


def test_unsigned_numbers_wrap_as_they_do():
    program = lambda x: (torch.full((2,), 200, dtype=torch.uint8) + torch.full((2,), 100, dtype=torch.uint8)) + x  # noqa: E731
    x = torch.zeros(2, dtype=torch.uint8)
    run = run_pass(fold, "joint", capture(program, [x], "aten"))
    assert run.record.changed
    assert run.module(x).tolist() == [44, 44]


def test_special_values_are_kept():
    """The examples that go, on what floating numbers have that numbers do not."""
    special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45])
    program = lambda x: ((x.neg() - 0) * 1 / torch.ones(6) + -0.0).neg()  # noqa: E731
    run = run_pass(fold, "joint", capture(program, [special], "aten"))
    assert len(run.record.matches) == 4
    assert torch.equal(run.module(special).view(torch.int32), program(special).view(torch.int32))


def cleaned(program):
    """Tracing puts a `detach` behind each reinterpretation, which another pass takes away."""
    return run_pass(remove_noop_ops, "joint", capture(program, [torch.randn(4)], "aten")).module


def test_reinterpretations_of_the_same_memory_are_shared():
    def program(x):
        y = x.sin()
        a, b = y.view(torch.int32), y.view(torch.int32)
        return a + 1, b + 2, y.view(torch.int32).view(torch.float32).cos(), y.view(torch.uint8).view(torch.int32) + 3

    run = run_pass(fold, "joint", cleaned(program))
    assert str(run.module.code).count("view.dtype") == 1
    x = torch.randn(4)
    assert all(torch.equal(a, b) for a, b in zip(run.module(x), program(x), strict=True))
    assert not run_pass(fold, "joint", run.module).record.changed


def test_a_chain_of_reinterpretations_is_one():
    program = lambda x: x.view(torch.int32).view(torch.uint32).view(torch.int32) + 1  # noqa: E731
    run = run_pass(fold, "joint", cleaned(program))
    assert str(run.module.code).count("view.dtype") == 1


def test_elements_of_another_size_are_not_skipped():
    run = run_pass(fold, "joint", cleaned(lambda x: x.view(torch.uint8).view(torch.int32) + 1))
    assert not run.record.changed
    assert "its element size differs" in run.record.rejects[0].reason


def test_an_input_is_never_returned_in_another_dtype_and_back():
    run = run_pass(fold, "joint", cleaned(lambda x: x.view(torch.int32).view(torch.float32)))
    assert not run.record.changed
    assert "an output of its own" in run.record.rejects[0].reason


def test_symbolic_sizes_without_guards():
    def program(x):
        return x * (torch.ones(x.shape[0], x.shape[1]) * 3) + torch.ones(x.shape[0] * 2, 1)[0] * 2

    module = capture(program, [torch.randn(4, 6)], "aten", dynamic=True)
    env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    guards = len(env.guards)
    run = run_pass(fold, "joint", module)
    assert run.record.changed
    assert len(env.guards) == guards
    assert "ones" not in str(module.code)
    for shape in ((4, 6), (3, 5)):
        x = torch.randn(shape)
        assert torch.equal(module(x), program(x))


def test_no_device_is_asked():
    """Tensors of a device without memory: whoever ran anything there would fail."""

    def program(x):
        return x * (torch.ones(3, device="meta") * 4 - 2).sqrt()

    run = run_pass(fold, "joint", capture(program, [torch.ones(3, device="meta")], "aten"))
    assert not [n for n in run.module.graph.nodes if "sqrt" in str(n.target)]
    (made,) = (n for n in run.module.graph.nodes if n.target is aten.full.default)
    assert made.args[1] == torch.tensor(2.0).sqrt().item()
    assert made.meta["val"].device.type == "meta"


def test_other_devices_divide_by_the_inverse():
    """Where the divisor is a number, a device may multiply with its inverse, which rounds differently."""

    def program(x, by):
        return x * (torch.ones(3, device="meta") / by)

    for by, folds in ((3.0, False), (4.0, True)):
        run = run_pass(fold, "joint", capture(lambda x, by=by: program(x, by), [torch.ones(3, device="meta")], "aten"))
        assert run.record.changed == folds


@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, bf16])
def test_training_and_inference(engine, dtype):
    def program(x, w):
        mask = torch.ones(4, 4, dtype=torch.bool, device=x.device).tril().logical_not() & torch.ones(
            4, 4, dtype=torch.bool
        )
        y = (x @ w) * torch.ones_like(x) - torch.zeros((), dtype=x.dtype)
        y = torch.where(torch.zeros(4, 4) > 1, w, y) + torch.zeros(4, 4, dtype=x.dtype)
        return y.masked_fill(mask, 2.0).sin(), torch.ones(2) * 3

    recorder = eductor.Recorder()
    compiled = eductor.compile(program, engine=engine, instruments=[recorder], verify="each", strict=True)
    x, w = (torch.randn(4, 4, dtype=dtype) for _ in range(2))
    for grad in (False, True):
        ours, theirs = ([t.clone().requires_grad_(grad) for t in (x, w)] for _ in range(2))
        got, wanted = compiled(*ours), program(*theirs)
        close = {"rtol": 1.6e-2, "atol": 1e-2} if dtype is bf16 else {}
        torch.testing.assert_close(got, wanted, **close)
        if grad:
            got[0].float().sum().backward()
            wanted[0].float().sum().backward()
            torch.testing.assert_close([t.grad for t in ours], [t.grad for t in theirs], **close)
    assert [r.changed for r in recorder.records if r.name == fold.name] == [True, True]
