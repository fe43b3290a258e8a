"""pass_patterns: the exact rewrites, what they make of the spellings that users write, and what they must leave."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import eductor
from eductor import Recorder
from eductor.graph import capture
from eductor.graph.values.value_comparison import is_bitwise_equal
from eductor.observe.manual.manual import run_pass
from eductor.passes.joint.pass_patterns import pass_patterns
from eductor.passes.joint.rewrites.conversions import FLOATS, INTEGERS, why_not
from eductor.pipeline import f32
from eductor.testing import assert_pass, assert_refused, check_contract

aten, prims = torch.ops.aten, torch.ops.prims


def convert(x, dtype):
    return prims.convert_element_type(x, dtype)


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def rewritten(program, *inputs, dynamic=False):
    """The graph of a program after the pass, which must change it, and a second time nothing."""
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    assert run_pass(pass_patterns, "joint", module).record.changed
    assert not run_pass(pass_patterns, "joint", module).record.changed
    return module


def left(program, *inputs):
    """The reasons for which the pass leaves a program."""
    run = run_pass(pass_patterns, "joint", capture(program, list(inputs), "aten"))
    assert not run.record.changed
    return [r.reason for r in run.record.rejects]


def test_keeps_its_contract():
    check_contract(pass_patterns, "joint")


def compiled(program, inputs, engine, rule):
    """Runs a program compiled and eagerly, forward and backward; the rule must have made a match."""
    torch._dynamo.reset()
    recorder = Recorder()
    fast = eductor.compile(program, engine=engine, instruments=[recorder], strict=True)
    results = []
    for fn in (fast, program):
        torch.manual_seed(0)
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        result = fn(*given)
        if result.requires_grad:
            (result * torch.linspace(-1, 2, result.numel()).reshape(result.shape)).sum().backward()
        results.append([result.detach(), *(x.grad for x in given if x.grad is not None)])
    matches = [m for r in recorder.records if r.name == "pass_patterns" for m in r.matches]
    assert any(m.rule == rule for m in matches), [m.rule for m in matches]
    return results


# ------------------------------------------------------------------------------------------------------------ views


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda x: x.view(2, 3, 4).sin(), lambda x: x.sin()),
        (lambda x: x.view(24).view(6, 4).sin(), lambda x: x.view(6, 4).sin()),
        (lambda x: x.view(24).view(4, 6).view(3, -1).sin(), lambda x: x.view(3, 8).sin()),
        (lambda x: aten._unsafe_view(x.unsqueeze(1), [6, 4]).sin(), lambda x: aten._unsafe_view(x, [6, 4]).sin()),
        (lambda x: x.unsqueeze(-1).squeeze(-1).sin(), lambda x: x.sin()),
        (lambda x: x.view(6, 4).view(2, 3, 4), lambda x: x.view(2, 3, 4)),
        (lambda x: x.t().t().sin() if x.dim() == 2 else x.permute(0, 1, 2).sin(), lambda x: x.sin()),
        (lambda x: x.permute(2, 0, 1).permute(1, 2, 0).sin(), lambda x: x.sin()),
        (lambda x: x.permute(2, 0, 1).permute(1, 0, 2).sin(), lambda x: x.permute(0, 2, 1).sin()),
        (lambda x: x.permute(-1, 0, -2).permute(-2, -1, 0).sin(), lambda x: x.sin()),
        (lambda x: x.transpose(0, 1).transpose(1, 2).sin(), lambda x: x.permute(1, 2, 0).sin()),
        (lambda x: x.transpose(-1, 0).permute(2, 1, 0).sin(), lambda x: x.sin()),
        (lambda x: x.transpose(0, 1).transpose(0, 1), lambda x: x.permute(0, 1, 2)),
    ],
)
def test_views_are_composed(before, after):
    assert_pass(pass_patterns, before, after, [f32(2, 3, 4)], stage="joint")


@pytest.mark.parametrize(
    "program", [lambda x: x.view(24).view(2, -1, 4).sin(), lambda x: x.view(24).view(24).view(2, 3, 4).sin()]
)
def test_a_chain_of_views_that_leads_back_is_nothing(program):
    assert targets(rewritten(program, torch.randn(2, 3, 4))) == [aten.sin.default]


def test_a_view_that_stands_alone_is_no_candidate():
    assert not left(lambda x: (x.view(6, 4).sin(), x.transpose(0, 1).sin(), x.unsqueeze(0)), torch.randn(2, 3, 4))


def test_what_is_between_may_have_other_users():
    def before(x):
        y = x.view(6, 4)
        z = x.permute(1, 0, 2)
        return y.view(24).sin(), y.view(2, 3, 4).cos(), y, z.permute(1, 0, 2).tan(), z.permute(2, 1, 0).exp(), z

    def after(x):
        y, z = x.view(6, 4), x.permute(1, 0, 2)
        return x.view(24).sin(), x.cos(), y, x.tan(), x.permute(2, 0, 1).exp(), z

    module = rewritten(before, x := torch.randn(2, 3, 4))
    assert targets(module).count(aten.view.default) == 2
    assert targets(module).count(aten.permute.default) == 2
    for a, b in zip(module(x), after(x), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x: x.view(2, 3, 4), "a separate output"),
        (lambda x: x.permute(0, 1, 2), "a separate output"),
        (lambda x: x.unsqueeze(0).squeeze(0), "a separate output"),
        (lambda x: (lambda y: (y.view(2, 3, 4), y))(x + 1), "another output"),
    ],
)
def test_an_output_does_not_become_an_input_or_another_output(program, because):
    assert_refused(pass_patterns, program, [f32(2, 3, 4)], because, stage="joint")


@pytest.mark.parametrize(
    "program",
    [lambda x: x.view(24).view(2, 3, 4), lambda x: x.transpose(0, 2).transpose(2, 0)],
    ids=["view", "permute"],
)
def test_a_chain_that_leads_back_to_an_input_stays_a_view_of_it(program):
    module = rewritten(program, x := torch.randn(2, 3, 4))
    assert len(targets(module)) == 1
    assert module(x) is not x
    assert module(x).data_ptr() == x.data_ptr()


def test_views_of_what_is_not_row_major():
    """Rows with gaps can be split and joined again; a transposed tensor cannot be read in its order without a copy."""
    gaps = torch.randn(6, 8)[:, :4]
    module = rewritten(lambda x: x.view(2, 3, 4).view(3, 2, 4).sin(), gaps)
    assert targets(module).count(aten.view.default) == 1
    assert torch.equal(module(gaps), gaps.view(3, 2, 4).sin())
    # A reshape that copies is a view of the copy, and so is what follows.
    turned = torch.randn(6, 4).t()
    module = rewritten(lambda x: x.reshape(24).view(8, 3).sin(), turned)
    assert targets(module)[0] is aten.clone.default
    assert len(targets(module)) == 3
    assert torch.equal(module(turned), turned.reshape(8, 3).sin())


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.view(x.shape[0] * x.shape[1]).view(x.shape[0], x.shape[1]).sin(),
        lambda x: x.view(-1).view(x.shape[1], x.shape[0]).sin(),
        lambda x: x.transpose(0, 1).transpose(0, 1).sin(),
        lambda x: x.unsqueeze(0).view(x.shape[1], x.shape[0]).sin(),
    ],
)
def test_symbolic_shapes_need_no_guard(program):
    module = capture(program, [torch.randn(4, 6)], "aten", dynamic=True)
    env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    guards = len(env.guards)
    assert run_pass(pass_patterns, "joint", module).record.changed
    assert len(env.guards) == guards
    x = torch.randn(7, 5)
    assert torch.equal(module(x), program(x))


def test_views_of_nothing_and_of_scalars():
    module = rewritten(lambda x: x.view(0, 6).view(2, 0).sin(), torch.randn(0, 3))
    assert module(torch.randn(0, 3)).shape == (2, 0)
    module = rewritten(lambda x: x.view(1).view([]).sin(), x := torch.randn([]))
    assert torch.equal(module(x), x.sin())


# ------------------------------------------------------------------------------------------------------ conversions


def every_value(dtype):
    """All values of a dtype of up to 16 bits; of wider ones many, with the edges of the narrower ones among them."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    bits = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    if dtype in (torch.int16, torch.float16, torch.bfloat16):
        return bits.view(dtype)
    if dtype in (torch.int8, torch.uint8):
        return torch.arange(-128, 128).to(torch.int8).view(dtype)
    if not dtype.is_floating_point:
        values = torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max, (1 << 16,), dtype=dtype)
        return torch.cat(
            [values, bits.to(dtype), torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max], dtype=dtype)]
        )
    narrow = torch.cat([bits.view(torch.float16).to(dtype), bits.view(torch.bfloat16).to(dtype)])
    halfway = (narrow[1:] + narrow[:-1]) / 2
    raw = torch.randint(-(1 << 31), 1 << 31, (1 << 16,)).to(torch.int32).view(torch.float32).to(dtype)
    return torch.cat([narrow, halfway, torch.nextafter(halfway, narrow[1:]), raw])


def test_conversions_that_are_composed_are_exact_for_every_value():
    """NaN, infinities, subnormal numbers and overflow included; in both engines' spelling the same kernels convert."""
    kept = composed = 0
    for first, middle, last in itertools.product((*FLOATS, *INTEGERS), repeat=3):
        if first is middle or middle is last:
            continue
        if why_not(first, middle, last):
            kept += 1
            continue
        composed += 1
        x = every_value(first)
        assert is_bitwise_equal(x.to(middle).to(last), x.to(last)), (first, middle, last)
    assert composed > 150
    assert kept > 300


@pytest.mark.parametrize("to", [convert, lambda x, d: aten._to_copy(x, dtype=d)], ids=["prims", "aten"])
@pytest.mark.parametrize(
    ("dtypes", "wanted"),
    [
        ((torch.float32, torch.float64, torch.float16), 1),
        ((torch.bfloat16, torch.float32, torch.float16), 1),
        ((torch.bfloat16, torch.float32, torch.bfloat16), 0),
        ((torch.int32, torch.int64, torch.int8), 1),
        ((torch.bool, torch.float32, torch.int64), 1),
        ((torch.float16, torch.float32, torch.float64), 1),
    ],
)
def test_a_widening_conversion_in_between_goes(to, dtypes, wanted):
    first, middle, last = dtypes
    x = every_value(first)[:64]
    module = rewritten(lambda x: aten.neg(to(to(x, middle), last)) if last != torch.bool else x, x)
    assert len(targets(module)) == wanted + 1
    assert is_bitwise_equal(module(x), aten.neg(x.to(middle).to(last)))


@pytest.mark.parametrize(
    ("dtypes", "because"),
    [
        ((torch.float32, torch.float16, torch.bfloat16), "torch.float16 does not have every value of torch.float32"),
        ((torch.bfloat16, torch.float16, torch.bfloat16), "torch.float16 does not have every value of torch.bfloat16"),
        ((torch.float32, torch.bfloat16, torch.float32), "does not have every value"),
        ((torch.float32, torch.float64, torch.int32), "may differ"),
        ((torch.int64, torch.float64, torch.int64), "does not have every value"),
        ((torch.int32, torch.float32, torch.float64), "does not have every value"),
        ((torch.float32, torch.complex64, torch.complex128), "left as they are"),
        ((torch.float8_e4m3fn, torch.float16, torch.float32), "left as they are"),
    ],
)
def test_what_rounds_twice_stays(dtypes, because):
    first, middle, last = dtypes
    x = torch.tensor([1e5, -1.0, 0.0]).to(first)
    (reason,) = left(lambda x: convert(convert(x, middle), last) * 2, x)
    assert because in reason


def test_a_conversion_there_and_back_keeps_outputs_and_strides():
    x = torch.randn(4).bfloat16()
    assert "a separate output" in left(lambda x: convert(convert(x, torch.float32), torch.bfloat16), x)[0]
    expanded = torch.randn(1, 4).bfloat16().expand(3, 4)
    assert "strides" in left(lambda x: convert(convert(x, torch.float32), torch.bfloat16) * 2, expanded)[0]


def test_a_copy_that_does_more_than_convert_stays():
    def program(x):
        wide = aten._to_copy(x, dtype=torch.float64, memory_format=torch.channels_last)
        return aten._to_copy(wide, dtype=torch.float32).sin()

    assert not left(program, torch.randn(2, 3, 4, 5))


def test_a_conversion_whose_middle_is_used_elsewhere():
    x = torch.randn(8).half()
    module = rewritten(lambda x: (lambda y: (y.sin(), convert(y, torch.bfloat16) + 1))(convert(x, torch.float32)), x)
    sine = next(n for n in module.graph.nodes if n.target is aten.sin.default)
    assert list(sine.all_input_nodes[0].users) == [sine]
    assert torch.equal(module(x)[1], x.bfloat16() + 1)


def test_conversions_compiled():
    x = torch.cat([torch.randn(64), torch.tensor([torch.nan, torch.inf, 1e30, 1e-44])])
    compiled_, eager = compiled(lambda x: x.double().half(), [x], "aten", "one_conversion")
    assert is_bitwise_equal(compiled_[0], eager[0])


# ---------------------------------------------------------------------------------------------------------- one-hot


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (lambda i: torch.zeros(4, 5).scatter(1, i, 1.0), (4, 1)),
        (lambda i: torch.ones(4, 5).scatter(-1, i, -3), (4, 1)),
        (lambda i: torch.full((5, 4), 0.5).scatter(0, i, torch.inf), (1, 4)),
        (lambda i: torch.zeros(2, 5, 3).scatter(1, i, 2.0), (2, 1, 3)),
        (lambda i: torch.zeros(4, 5, dtype=torch.int64).scatter(1, i, 7), (4, 1)),
        (lambda i: torch.zeros(4, 5, dtype=torch.bool).scatter(1, i, True), (4, 1)),
        (lambda i: torch.zeros(4, 5, dtype=torch.bfloat16).scatter(1, i, 0.1), (4, 1)),
        (lambda i: torch.full((4, 5), -0.0, dtype=torch.float64).scatter(1, i, 0.1), (4, 1)),
        (lambda i: torch.zeros(5).scatter(0, i, 1.0), (1,)),
    ],
)
def test_a_scatter_of_one_value_a_row_is_a_comparison(program, shape):
    index = torch.randint(0, 5, shape)
    module = rewritten(program, index)
    assert aten.scatter.value not in targets(module)
    result, eager = module(index), program(index)
    assert is_bitwise_equal(result, eager)
    assert (result.dtype, result.stride()) == (eager.dtype, eager.stride())
    for outside in (5, -1):
        index.fill_(outside)
        for fn in (module, program):
            with pytest.raises(RuntimeError, match="out of bounds"):
                fn(index)


@pytest.mark.parametrize(
    ("program", "shape", "because"),
    [
        (lambda i: torch.zeros(4, 5).scatter(1, i, 1.0), (4, 2), "several indices"),
        (lambda i: torch.zeros(4, 5).scatter(1, i, 1.0), (3, 1), "not every row"),
        (lambda i: torch.zeros(5, 4).t().scatter(1, i, 1.0), (4, 1), None),
        (lambda i: torch.zeros(4, 5).scatter(1, i, 1.0, reduce="add"), (4, 1), None),
        (lambda i: torch.rand(4, 5).scatter(1, i, 1.0), (4, 1), None),
        (lambda i: torch.zeros(2, 3, 5).scatter(2, i.permute(2, 0, 1), 1.0), (3, 1, 2), "row-major"),
    ],
)
def test_other_scatters_stay(program, shape, because):
    reasons = left(program, torch.randint(0, 4, shape))
    assert not reasons if because is None else because in reasons[0]


def test_a_scatter_of_symbolic_size():
    def program(x, i):
        return torch.zeros(x.shape[0], x.shape[1]).scatter(1, i, 1.0) * x

    module = capture(program, [torch.randn(4, 6), torch.randint(0, 6, (4, 1))], "aten", dynamic=True)
    assert run_pass(pass_patterns, "joint", module).record.changed
    x, i = torch.randn(3, 9), torch.randint(0, 9, (3, 1))
    assert torch.equal(module(x, i), program(x, i))


def test_the_backward_of_cross_entropy_has_no_scatter():
    x = torch.randn(8, 10, dtype=torch.bfloat16, requires_grad=True)
    target = torch.tensor([0, 9, 3, -100, 5, 1, -100, 2])

    def loss(x):
        return F.cross_entropy(x.float(), target)

    compiled_, eager = compiled(loss, [x], "inductor", "scatter_upon_const_tensor")
    for a, b in zip(compiled_, eager, strict=True):
        torch.testing.assert_close(a, b)


def test_an_index_out_of_range_is_an_error_when_compiled():
    torch._dynamo.reset()
    fast = eductor.compile(lambda i: torch.zeros(4, 5).scatter(1, i, 1.0) * 2, engine="inductor", strict=True)
    assert torch.equal(fast(torch.full((4, 1), 4)), torch.zeros(4, 5).index_fill(1, torch.tensor([4]), 2.0))
    with pytest.raises(RuntimeError):
        fast(torch.full((4, 1), 5))


# --------------------------------------------------------------------------------------------------------- indexing


def drawn(module, inputs, seed=3):
    torch.manual_seed(seed)
    return module(*inputs)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[torch.randperm(6)[:4]],
        lambda x: x[torch.randperm(6)],
        lambda x: x[torch.randperm(4)],
        lambda x: x[torch.randperm(6)[1:5][::2]],
        lambda x: x[:, torch.randperm(3)],
        lambda x: x[..., torch.randperm(5)[:2]],
        lambda x: x[torch.randperm(6)[:3], torch.randperm(3)],
        lambda x: (x * 3).long()[torch.randperm(6)[:4]],
    ],
)
def test_what_a_permutation_picks_is_not_checked(program):
    x = torch.randn(6, 3, 5)
    module = rewritten(program, x)
    assert aten._unsafe_index.Tensor in targets(module)
    assert aten.index.Tensor not in targets(module)
    assert torch.equal(drawn(module, [x]), drawn(program, [x]))


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x: x[torch.randperm(7)[:4]], "a permutation of 7 numbers"),
        (lambda x: x[:, torch.randperm(6)[:2]], "dimension 1"),
        (lambda x: x[torch.randperm(6)[:4] + 1], None),
        (lambda x: x[torch.randint(0, 6, (4,))], None),
        (lambda x: x[torch.randperm(6)[:2], torch.tensor([0, 1])], None),
    ],
)
def test_other_indices_are_checked(program, because):
    reasons = left(program, torch.randn(6, 3))
    assert not reasons if because is None else because in reasons[0]


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (lambda x, y: x.index_add(0, torch.randperm(6)[:4], y), (4, 3)),
        (lambda x, y: x.index_add(0, torch.randperm(6), y), (6, 3)),
        (lambda x, y: x.index_add(-1, torch.randperm(3)[1:], y), (6, 2)),
        (lambda x, y: aten.index_put(x, [torch.randperm(6)[:4]], y, True), (4, 3)),
        (lambda x, y: aten.index_put(x, [None, torch.randperm(3)], y, True), (3,)),
        (lambda x, y: x.long().index_add(0, torch.randperm(6), y.long(), alpha=3), (6, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_into_what_a_permutation_picks_is_stored(program, shape, dtype):
    x, y = (torch.randn(6, 3) * 9).to(dtype), (torch.randn(shape) * 9).to(dtype)
    x[0, 0], y[-1] = -0.0, -0.0
    module = rewritten(program, x, y)
    assert aten._unsafe_index_put.default in targets(module)
    for seed in range(3):
        assert is_bitwise_equal(drawn(module, [x, y], seed), drawn(program, [x, y], seed))


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x, y: x.index_add(0, torch.randperm(6), y, alpha=0.5), "the product with alpha=0.5"),
        (lambda x, y: aten.index_put(x, [torch.randperm(6)], y, False), "does not add"),
        (lambda x, y: aten.index_put(x, [torch.randperm(6)[:3], torch.randperm(3)], y[0], True), "meet a place twice"),
        (lambda x, y: x[:5].index_add(0, torch.randperm(6)[:5], y[:5]), "a permutation of 6 numbers"),
        (lambda x, y: x.t().index_add(1, torch.randperm(6), y.t()), "not row-major"),
        (lambda x, y: x.index_add(0, torch.randint(0, 6, (6,)), y), None),
    ],
)
def test_other_sums_stay(program, because):
    reasons = left(program, torch.randn(6, 3), torch.randn(6, 3))
    assert not reasons if because is None else because in reasons[0]


def test_a_permutation_of_symbolic_size():
    def program(x):
        return x[torch.randperm(x.shape[0])]

    module = capture(program, [torch.randn(6, 4)], "aten", dynamic=True)
    assert run_pass(pass_patterns, "joint", module).record.changed
    assert aten._unsafe_index.Tensor in targets(module)
    x = torch.randn(9, 2)
    assert torch.equal(drawn(module, [x]), drawn(program, [x]))


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_permutations_compiled_in_training(engine):
    def program(x, y):
        return x[torch.randperm(8)[:6]].sin().index_add(1, torch.randperm(4), y)

    inputs = [torch.randn(8, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)]
    for rule in ("randperm_index", "randperm_index_add"):
        results = compiled(program, inputs, engine, rule)
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[torch.arange(4)],
        lambda x: x[torch.arange(1, 4, 2), torch.arange(2)],
        lambda x: x[prims.iota(4, start=0, step=1, dtype=torch.int64, device=torch.device("cpu"), requires_grad=False)],
        lambda x: aten.index_put(x, [torch.arange(4)], x.sin()),
    ],
)
def test_a_range_is_made_where_it_indexes(program):
    """The meta device stands for an accelerator: values are not looked at."""
    module = capture(program, [torch.randn(4, 4, device="meta")], "aten")
    assert run_pass(pass_patterns, "joint", module).record.changed
    assert {n.meta["val"].device.type for n in module.graph.nodes if n.op == "call_function"} == {"meta"}


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x: (lambda i: (x[i], i + 1))(torch.arange(4)), "otherwise than as an index"),
        (lambda x: (lambda i: (x[i], torch.ones(4)[i]))(torch.arange(4)), "a tensor on the CPU, too"),
        (lambda x: x + 1, None),
        (lambda x: torch.ones(4)[torch.arange(4)], None),
    ],
)
def test_a_range_that_is_used_otherwise_stays(program, because):
    reasons = left(program, torch.randn(4, 4, device="meta"))
    assert not reasons if because is None else because in reasons[0]


# ---------------------------------------------------------------------------------------------------------- a model


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_views_of_attention_in_training(engine):
    def attend(x, w):
        q = F.linear(x, w).view(2, 6, 2, 4).transpose(1, 2)
        scores = torch.matmul(q, q.transpose(2, 3)).softmax(-1)
        return F.linear(torch.matmul(scores, q).transpose(1, 2).reshape(2, 6, 8), w).view(12, 8)

    inputs = [torch.randn(2, 6, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)]
    results = compiled(attend, inputs, engine, "one_reshape")
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
