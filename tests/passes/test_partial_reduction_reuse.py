"""partial_reduction_reuse: maxima and minima of maxima and minima, for any dimensions and any keepdim."""

from __future__ import annotations

import itertools

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.partial_reduction_reuse import partial_reduction_reuse
from eductor.verification.verifier import Verifier

aten = torch.ops.aten
SMALL = partial_reduction_reuse.configured(least=1)


def ran(program, *inputs, pass_=SMALL, dynamic=False):
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    verifier = Verifier([x.clone() for x in inputs])
    run = run_pass(pass_, "post_grad", module, verifier)
    assert not verifier.notes, verifier.notes
    assert not run_pass(pass_, "post_grad", module).record.changed
    return run


def fires(program, *inputs):
    run = ran(program, *inputs)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    for a, b in zip(run.module(*inputs), program(*inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    return run


@pytest.mark.parametrize("op", [torch.amax, torch.amin])
@pytest.mark.parametrize(("narrow", "wide"), [((1,), (0, 1, 2)), ((-1,), (1, 2)), ((0, 2), (2, 1, 0)), ((2,), (0, -1))])
@pytest.mark.parametrize(("keep", "keep_wide"), itertools.product([False, True], repeat=2))
@pytest.mark.parametrize("wide_first", [False, True])
def test_of_some_dimensions_and_of_more(op, narrow, wide, keep, keep_wide, wide_first):
    def program(x):
        if wide_first:
            b = op(x, wide, keepdim=keep_wide)
            return op(x, narrow, keepdim=keep), b
        return op(x, narrow, keepdim=keep), op(x, wide, keepdim=keep_wide)

    run = fires(program, torch.randn(3, 4, 5))
    reads = [n for n in run.module.graph.nodes if n.op == "call_function" and n.args[0].op == "placeholder"]
    assert len(reads) == 1


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.amax(1), x.max()),
        lambda x: (x.amin(1, keepdim=True), x.min()),
        lambda x: (x.amax(0), x.amax()),
        lambda x: (x.amax(0), x.amax(()), x.amax(0, keepdim=True) * 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_of_everything_in_any_dtype(program, dtype):
    fires(program, (9 * torch.randn(4, 5)).abs().to(dtype))


def test_numbers_that_are_none():
    x = torch.randn(4, 6)
    x[0] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1.0])
    for program in (lambda x: (x.amax(1), x.amax()), lambda x: (x.amin(0), x.min())):
        fires(program, x)
        fires(program, x[1:])


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x: (x.amax(0), x.amin()), "no other call"),
        (lambda x: (x.amax(0), x.amax(1)), "no other call"),
        (lambda x: (x.amax(0), x.amax(0, keepdim=True)), "no other call"),
        (lambda x: (x.amax(0), x.sin().amax()), "no other call"),
        (lambda x: (x.max(0).values, x.amax()), "no other call"),
        (lambda x: (lambda a: (x + a).amax(0) + x.amax(0))(x.amax()), "before"),
    ],
)
def test_others_stay(program, because):
    run = ran(program, torch.randn(4, 5))
    assert not run.record.changed, run.after
    assert any(because in r.reason for r in run.record.rejects), [r.reason for r in run.record.rejects]


def test_small_and_unknown_sizes_stay():
    program = lambda x: (x.amax(1), x.amax())  # noqa: E731
    run = ran(program, torch.randn(8, 8), pass_=partial_reduction_reuse)
    assert not run.record.changed
    run = ran(program, torch.randn(80, 80), pass_=partial_reduction_reuse, dynamic=True)
    assert not run.record.changed
    assert ran(program, torch.randn(80, 80), pass_=partial_reduction_reuse).record.changed


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_compiled(engine):
    torch._dynamo.reset()
    recorder = Recorder()
    program = lambda x: (x.abs().amax(1, keepdim=True), x.abs().max())  # noqa: E731
    fast = eductor.compile(program, engine=engine, instruments=[recorder], strict=True)
    x = torch.randn(80, 80)
    for a, b in zip(fast(x), program(x), strict=True):
        assert torch.equal(a, b)
    # Two equal tensors are two tensors to it; the elimination of common subexpressions makes them one.
    same = lambda x: (lambda y: (y.amax(1), y.max()))(x.abs())  # noqa: E731
    for a, b in zip(eductor.compile(same, engine=engine, instruments=[recorder])(x), same(x), strict=True):
        assert torch.equal(a, b)
    assert any(r.changed for r in recorder.records if r.name == "partial_reduction_reuse")


def test_a_number_is_nothing_to_reduce():
    """torch takes the dimensions 0 and -1 of a tensor that has none."""
    run = ran(lambda x: (x.amax(0), x.amax(), x.amin(-1, keepdim=True)), torch.tensor(2.0))
    assert not run.record.changed
