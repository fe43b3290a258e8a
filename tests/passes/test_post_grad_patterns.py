"""The patterns of the post-grad stage: cats of pieces and pieces of cats, sums of constants, permutations."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.graph import capture
from eductor.graph.values.value_comparison import is_bitwise_equal
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.pass_patterns import pass_patterns
from eductor.verification.verifier import Verifier

aten, prims = torch.ops.aten, torch.ops.prims

AWKWARD = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e30])


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def ran(program, *inputs, dynamic=False):
    """A checked run of the pass: numbers, strides and aliasing are what they were, and a second run changes nothing."""
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    verifier = Verifier([x.clone() for x in inputs])
    run = run_pass(pass_patterns, "post_grad", module, verifier)
    assert not verifier.notes, verifier.notes
    assert not run_pass(pass_patterns, "post_grad", module).record.changed
    return run


def fires(program, *inputs, dynamic=False):
    run = ran(program, *inputs, dynamic=dynamic)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    results, eager = run.module(*inputs), program(*inputs)
    many = isinstance(eager, (tuple, list))
    for a, b in zip(results, eager, strict=True) if many else [(results, eager)]:
        assert is_bitwise_equal(a, b)
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    return targets(run.module)


def left(program, *inputs):
    run = ran(program, *inputs)
    assert not run.record.changed, run.after
    return [r.reason for r in run.record.rejects]


# ------------------------------------------------------------------------------------------------- cats of pieces


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cat(x.split([2, 3, 1], 1), 1) * 2,
        lambda x: torch.cat(x.split([2, 3, 1], -1), 1) * 2,
        lambda x: torch.cat(x.split([2, 3, 1], 1), -1) * 2,
        lambda x: torch.cat(x.split(4, 1), 1) * 2,
        lambda x: torch.cat(x.split(3)) * 2,
        lambda x: torch.cat(x.split(3, -2)) * 2,
        lambda x: torch.cat(x.chunk(3), -2) * 2,
        lambda x: torch.cat(x.split([0, 4, 2], 1), 1) * 2,
        lambda x: torch.cat([x[:, :4], x[:, 4:]], 1) * 2,
        lambda x: torch.cat([x[:, :4], x[:, 4:5], x[:, 5:]], -1) * 2,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_all_pieces_of_a_tensor_are_the_tensor(program, dtype):
    x = torch.cat([AWKWARD, torch.randn(30)]).nan_to_num() if not dtype.is_floating_point else None
    x = (x if x is not None else torch.cat([AWKWARD, torch.randn(30)])).reshape(6, 6).to(dtype)
    assert fires(program, x) == [aten.mul.Tensor]


def test_pieces_of_symbolic_size():
    def program(x):
        return torch.cat([x[:, :2], x[:, 2:]], 1) * 2

    assert fires(program, torch.randn(4, 6), dynamic=True)[-1:] == [aten.mul.Tensor]


def test_a_cat_that_is_returned_stays_a_tensor_of_its_own():
    x = torch.randn(4, 6)
    run = ran(lambda x: torch.cat(x.split(2, 1), 1), x)
    assert targets(run.module) == [aten.clone.default]
    assert run.module(x).data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cat(x.split(2, 1), 0) * 2,
        lambda x: torch.cat(x.split(2, 1)[::-1], 1) * 2,
        lambda x: torch.cat([x[:, :2], x[:, 3:]], 1) * 2,
        lambda x: torch.cat([x[:, :3], x[:, 2:]], 1) * 2,
        lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1) * 2,
    ],
)
def test_other_pieces_stay(program):
    left(program, torch.randn(4, 6))


# ------------------------------------------------------------------------------------------------- pieces of cats


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: [p.sin() for p in torch.cat([x, y], 1).split([2, 3], 1)],
        lambda x, y: [p.sin() for p in torch.cat([x, y], -1).split([2, 3], 1)],
        lambda x, y: [p.sin() for p in torch.cat([x, y], 1).split([2, 3], -1)],
        lambda x, y: [torch.cat([x, y], 1)[:, :2].sin(), torch.cat([x, y], 1)[:, 2:].cos()],
        lambda x, y: [torch.cat([x, y], 1)[:, 2:4].sin()],
        lambda x, y: [torch.cat([x, y], 1)[:, :1].sin()],
        lambda x, y: [p.sum(1) for p in torch.cat([x, x[:, :1] + 1, y], 1).split([2, 1, 1, 2], 1)],
        lambda x, y: [torch.cat([x, y], 1)[:, 2:].transpose(0, 1).relu()],
        lambda x, y: [torch.cat([x, y], 1)[:, :2] @ y[:2]],
    ],
)
def test_pieces_of_a_cat_are_its_operands(program):
    x, y = torch.randn(4, 2), torch.randn(4, 3)
    assert aten.cat.default not in fires(program, x, y)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64])
def test_pieces_of_a_cat_in_any_dtype(dtype):
    x, y = (torch.randn(4, n).gt(0).to(dtype) for n in (2, 3))
    assert aten.cat.default not in fires(lambda x, y: [p.sum(1) for p in torch.cat([x, y], 1).split([2, 3], 1)], x, y)


def test_a_viewed_piece_lies_otherwise_and_nobody_sees_it():
    x, y = torch.randn(4, 3), torch.randn(2, 3)
    found = fires(lambda x, y: [p.view(-1).sin() for p in torch.cat([x, y]).split([4, 2])], x, y)
    assert aten.cat.default not in found


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x, y: torch.cat([x, y], 1).split([2, 3], 1), "a separate output"),
        (lambda x, y: torch.cat([x + 1, y], 1)[:, :2], "the strides of an output would change"),
        (lambda x, y: torch.cat([x, y], 1)[:, 1:4].sin(), "is not within one operand"),
        (lambda x, y: torch.cat([x, y], 1)[:, ::2].sin(), None),
        (lambda x, y: torch.cat([x, y], 1)[:3].sin(), None),
        (lambda x, y: torch.cat([x.double(), y], 1)[:, :2].sin(), None),
        (lambda x, y: torch.cat([x.t().contiguous().t(), y], 1)[:, :2].sin(), "is not row-major"),
        (lambda x, y: aten.as_strided(torch.cat([x, y], 1)[:, :2], [2], [5], 0).sin(), "reads its storage directly"),
    ],
)
def test_other_pieces_of_cats_stay(program, because):
    reasons = left(program, torch.randn(4, 2), torch.randn(4, 3))
    assert not reasons if because is None else any(because in reason for reason in reasons), reasons


def test_a_write_to_an_operand_is_not_seen_through_a_piece():
    def program(x, y):
        z = torch.cat([x, y], 1)
        result = z[:, :2] * 2
        x.copy_(y[:, :2])
        return result

    torch._dynamo.reset()
    for engine in ("aten", "inductor"):
        fast = eductor.compile(program, engine=engine, strict=True)
        x, y = torch.randn(4, 2), torch.randn(4, 3)
        a, b = x.clone(), x.clone()
        assert torch.equal(fast(a, y), program(b, y))
        assert torch.equal(a, b)


# --------------------------------------------------------------------------------------------------- cats of cats


@pytest.mark.parametrize(
    ("program", "operands"),
    [
        (lambda x, y: (lambda c: torch.cat([c, c[:, :2]], 1))(torch.cat([x, y], 1)), 3),
        (lambda x, y: (lambda c: torch.cat([c, c[:, :1]], -1))(torch.cat([x, y], 1)), 3),
        (lambda x, y: torch.cat([x, torch.cat([x, y], 1), torch.cat([y, y], -1)], 1), 5),
        (lambda x, y: torch.cat([torch.cat([torch.cat([x, y], 1), y], 1), x], 1), 4),
        (lambda x, y: torch.cat([torch.cat([x, y[:, :2].t().contiguous().t()], 1), y], 1), 3),
        # The rows of the inner cat are put together again, so they are dead: it has no other user left.
        (lambda x, y: torch.cat([torch.cat(torch.cat([x, y], 1).split(2)), x], 1), 3),
    ],
)
def test_a_cat_of_a_cat_is_flat(program, operands):
    x, y = torch.randn(4, 2), torch.randn(4, 3)
    run = ran(program, x, y)
    (cat,) = [n for n in run.module.graph.nodes if n.target is aten.cat.default]
    assert len(cat.args[0]) == operands
    assert torch.equal(run.module(x, y), program(x, y))


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x, y: torch.cat([torch.cat([x, x], 0), torch.cat([y[:, :2], x], 0)], 1), "another dimension"),
        (lambda x, y: (lambda c: (torch.cat([c, x], 1), c.sin()))(torch.cat([x, y], 1)), "used elsewhere"),
        (lambda x, y: torch.cat([torch.cat([x.double(), y], 1), y.double()], 1), None),
    ],
)
def test_other_cats_of_cats_stay(program, because):
    reasons = left(program, torch.randn(4, 2), torch.randn(4, 3))
    assert not reasons if because is None else any(because in reason for reason in reasons), reasons


# -------------------------------------------------------------------------------------------------- sums of constants


@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        (lambda: torch.ones(3, 5).cumsum(1), torch.float32),
        (lambda: torch.ones(3, 5).cumsum(-2), torch.float32),
        (lambda: torch.full((5,), -2.5).cumsum(0), torch.float32),
        (lambda: torch.full((300,), 1.0, dtype=torch.float16).cumsum(0), torch.float16),
        (lambda: torch.full((200,), 1.0, dtype=torch.bfloat16).cumsum(0), torch.bfloat16),
        (lambda: torch.full((2, 5), 3, dtype=torch.int32).cumsum(1), torch.int64),
        (lambda: torch.full((2, 5), 100, dtype=torch.int8).cumsum(1, dtype=torch.int8), torch.int8),
        (lambda: torch.full((2, 5), 2.75).cumsum(1, dtype=torch.int32), torch.int32),
        (lambda: torch.ones(2, 5, dtype=torch.bool).cumsum(1), torch.int64),
        (lambda: torch.ones(2, 5, dtype=torch.bool).cumsum(0, dtype=torch.bfloat16), torch.bfloat16),
        (lambda: torch.ones(2, 5, dtype=torch.int64).cumsum(1, dtype=torch.float64), torch.float64),
        (lambda: torch.zeros(2, 5).cumsum(1), torch.float32),
        (lambda: torch.full((2, 5), torch.inf).cumsum(1), torch.float32),
        (lambda: torch.full((2, 5), -torch.inf).cumsum(1), torch.float32),
        (lambda: torch.full((2, 5), torch.nan).cumsum(1), torch.float32),
        (lambda: torch.ones(0, 5).cumsum(1), torch.float32),
        (lambda: torch.ones(3, 0).cumsum(1), torch.float32),
    ],
)
def test_a_running_sum_of_a_constant_is_its_multiples(program, dtype):
    found = fires(lambda x: program(), torch.zeros(1))
    assert aten.cumsum.default not in found
    assert program().dtype is dtype


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda: torch.full((2, 5), 0.1).cumsum(1), "rounded"),
        (lambda: torch.full((2, 300), 1.0, dtype=torch.bfloat16).cumsum(1), "rounded"),
        (lambda: torch.full((2, 5), 3e38).cumsum(1), "rounded"),
        (lambda: torch.full((2, 5), -0.0).cumsum(1), "a sum of -0.0 is 0.0"),
        (lambda: torch.ones([]).cumsum(0), "no dimensions"),
        (lambda: torch.ones(5, dtype=torch.complex64).cumsum(0), "torch.complex64"),
        (lambda: torch.ones(5).sin().cumsum(0), None),
    ],
)
def test_other_running_sums_stay(program, because):
    reasons = left(lambda x: program(), torch.zeros(1))
    assert not reasons if because is None else because in reasons[0]


def test_a_running_sum_of_symbolic_length():
    def program(x):
        return torch.ones(x.shape[0], x.shape[1], dtype=torch.int64).cumsum(1) * x

    run = ran(program, torch.randn(2, 6), dynamic=True)
    assert aten.cumsum.default not in targets(run.module)
    x = torch.randn(3, 9)
    assert torch.equal(run.module(x), program(x))


def test_an_engine_that_does_not_fuse_keeps_running_sums():
    recorder = Recorder()
    module = capture(lambda x: torch.ones(4).cumsum(0) * x, [torch.randn(4)], "aten")
    eductor.post_grad_passes(module, True, options={"engine": "aten", "instruments": [recorder]})
    assert aten.cumsum.default in targets(module)


# ------------------------------------------------------------------------------------------------------- permutations


def test_what_a_permutation_picks_is_not_checked():
    x, y = torch.randn(6, 3), torch.randn(6, 3)
    run = ran(lambda x, y: (x[torch.randperm(6)[:4]], x.index_add(0, torch.randperm(6), y)), x, y)
    found = targets(run.module)
    assert found.count(aten._unsafe_index.Tensor) == 2
    assert aten._unsafe_index_put.default in found


# ------------------------------------------------------------------------------------------------------------ compiled


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_compiled_in_training(engine):
    def program(x, y):
        a, b = torch.cat([x.sin(), y], 1).split([2, 3], 1)
        c = torch.cat([b.cos(), a], 1)
        return torch.cat([c, c[:, :1]], 1) * torch.ones(6).cumsum(0)

    torch._dynamo.reset()
    recorder = Recorder()
    fast = eductor.compile(
        program, engine=engine, instruments=[recorder], strict=True, disable=["split_cat_pass", "merge_concats_pass"]
    )
    results = []
    for fn in (fast, program):
        torch.manual_seed(0)
        inputs = [torch.randn(4, 2, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
        result = fn(*inputs)
        (result * torch.linspace(-1, 1, 24).view(4, 6)).sum().backward()
        results.append([result.detach(), *(x.grad for x in inputs)])
    assert any(r.changed for r in recorder.records if r.address == "post_grad/pass_patterns")
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
