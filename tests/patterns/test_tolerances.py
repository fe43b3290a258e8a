"""Tolerances: one declared pattern for the spellings of one thing, and for nothing that only looks like it."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from pattern_tools import aten, changed, count, graph_of, matches, one_rule, replaced, untouched

from eductor.errors import BadPattern
from eductor.observe.manual.manual import run_pass
from eductor.patterns import const, op, var
from eductor.pipeline import f32

x, w = var("x"), var("w")


# ------------------------------------------------------------------------------------------------------------- RMSNorm


def rms(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def named(x, w, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, eps)


variance = op(aten.mean, op(aten.pow, x, 2), [-1], True)
EXPRESSION = op(aten.mul, op(aten.mul, x, op(aten.rsqrt, op(aten.add, variance, const("eps")))), w)


@torch.library.custom_op("eductor_tests::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    return rms(x.float(), w.float(), eps).to(torch.promote_types(x.dtype, w.dtype))


@rms_norm.register_fake
def _(x, w, eps):
    return torch.empty_like(x, dtype=torch.promote_types(x.dtype, w.dtype))


NORM = torch.ops.eductor_tests.rms_norm


def fused(x, w, eps):
    return NORM(x, w, eps)


@functools.cache  # tracing it for each rank takes a while
def ours(search=rms):
    examples = {} if search is EXPRESSION else {"inputs": [f32(4, 8), f32(8), 1e-6]}
    return one_rule(search, fused, tolerate=("casts", "scale", "rank"), **examples)


SPELLINGS = {
    "plain": lambda x, w, e: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e) * w,
    "weight_first": lambda x, w, e: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e)),
    "product": lambda x, w, e: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + e) * w,
    "square": lambda x, w, e: x * torch.rsqrt(x.square().mean(-1, True) + e) * w,
    "division": lambda x, w, e: x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + e) * w,
    "reciprocal": lambda x, w, e: x * (1.0 / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + e)) * w,
    "power": lambda x, w, e: x * (x.pow(2).mean(-1, keepdim=True) + e).pow(-0.5) * w,
    "eps_first": lambda x, w, e: w * (torch.rsqrt(e + x.pow(2).mean(-1, keepdim=True)) * x),
    "llama": lambda x, w, e: (
        w * (lambda h: (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + e)).to(x.dtype))(x.float())
    ),
    "wide": lambda x, w, e: (lambda h: h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + e) * w.float())(x.float()).to(
        x.dtype
    ),
}


@pytest.mark.parametrize("search", [rms, EXPRESSION], ids=["function", "expression"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_ten_spellings_of_a_norm_are_one(search, dtype, spelling):
    program, made = SPELLINGS[spelling], ours(search)
    for shape, eps in (((4, 8), 1e-6), ((2, 3, 8), 0.03)):
        given = [torch.randn(shape).to(dtype), torch.randn(8).to(dtype)]
        run = verified(made, lambda x, w, p=program, e=eps: p(x, w, e).neg(), given)
        module = changed(run)
        assert count(module, NORM) == 1, run.after
        assert count(module, aten.rsqrt, aten.sqrt, aten.pow, aten.mean, aten.reciprocal) == 0, run.after
        (norm,) = (n for n in module.graph.nodes if n.target is NORM.default)
        assert norm.args[2] == eps


def verified(made, program, given, dynamic=False):
    from eductor.verification.verifier import Verifier

    verifier = Verifier(given)
    run = run_pass(made, "joint", graph_of(program, given, dynamic=dynamic), verifier)
    assert not verifier.notes, verifier.notes
    assert not run_pass(made, "joint", run.module).record.changed
    return run


def test_a_norm_of_unknown_sizes():
    run = verified(ours(), lambda x, w: rms(x, w, 1e-5).neg(), [torch.randn(4, 8), torch.randn(8)], dynamic=True)
    module = changed(run)
    for rows, columns in ((4, 8), (7, 5)):
        a, b = torch.randn(rows, columns), torch.randn(columns)
        torch.testing.assert_close(module(a, b), rms(a, b, 1e-5).neg())


LOOK_ALIKES = {
    "another dim": lambda x, w: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * w,
    "both dims": lambda x, w: x * torch.rsqrt(x.pow(2).mean((0, 1), keepdim=True) + 1e-6) * w,
    "the third power": lambda x, w: x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + 1e-6) * w,
    "another variable": lambda x, w: x * torch.rsqrt(w.expand(8, 8).pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "a product of two": lambda x, w: x * torch.rsqrt((x * w).mean(-1, keepdim=True) + 1e-6) * w,
    "through integers": lambda x, w: x * torch.rsqrt(x.int().float().pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "alpha": lambda x, w: x * torch.rsqrt(torch.add(x.pow(2).mean(-1, True), 1e-6, alpha=2)) * w,
    "the root itself": lambda x, w: x * torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "the inverse of the inverse": lambda x, w: x / torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "a sum": lambda x, w: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) * w,
    "eps outside": lambda x, w: x * (torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) + 1e-6) * w,
    "another power": lambda x, w: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-1.5) * w,
    "an absolute value": lambda x, w: x.abs() * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "divided by the weight": lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) / w,
}


@pytest.mark.parametrize("search", [rms, EXPRESSION], ids=["function", "expression"])
@pytest.mark.parametrize("program", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_what_looks_like_a_norm_is_left(search, program):
    untouched(verified(ours(search), program, [torch.rand(8, 8) + 0.5, torch.rand(8) + 0.5]))


def test_a_norm_whose_mean_is_also_returned_is_left_and_says_so():
    def program(x, w):
        mean = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + 1e-6) * w, mean

    run = verified(ours(), program, [torch.randn(4, 8), torch.randn(8)])
    assert not run.record.changed
    assert [r.reason for r in run.record.rejects] == ["mean is also returned by the graph"]


def test_an_exact_pass_cannot_overlook_roundings():
    from pattern_tools import passing

    with pytest.raises(BadPattern, match="is exact, and tolerating casts, scale changes roundings"):
        passing().replace(rms, named, inputs=[f32(4, 8), f32(8), 1e-6], tolerate=("scale", "casts"))


# --------------------------------------------------------------------------------------------------------------- scale


@pytest.mark.parametrize("pattern", [op(aten.mul, x, const("s")), op(aten.div, x, const("s"))], ids=["times", "by"])
@pytest.mark.parametrize(("program", "factor"), [(lambda a: a * 4.0, 4.0), (lambda a: a / 4.0, 0.25)])
def test_a_free_scale_stands_for_itself_or_its_inverse(pattern, program, factor):
    (found,) = matches(pattern, graph_of(lambda a: program(a).sin(), [torch.randn(4)]), "scale")
    wanted = factor if pattern.targets[0] is aten.mul else 1 / factor
    assert found["s"] == wanted
    exact = matches(pattern, graph_of(lambda a: program(a).sin(), [torch.randn(4)]))
    assert len(exact) == ((factor > 1) is (pattern.targets[0] is aten.mul))


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (op(aten.add, op(aten.div, x, const("s")), const("s")), lambda x, s: (x * (1 / s)) + s * 1.0),
        (op(aten.div, op(aten.add, x, const("s")), const("s")), lambda x, s: aten.add(x, s) * (1 / s)),
    ],
)
@pytest.mark.parametrize("s", [4.0, 0.5, 1.0])
def test_a_free_number_may_divide_in_one_place_and_not_in_another(pattern, replacement, s):
    first = pattern.targets[0] is aten.add
    program = (lambda a: (a / s + s).sin()) if first else (lambda a: ((a + s) / s).sin())
    module = graph_of(program, [torch.randn(4)])
    assert {m["s"] for m in matches(pattern, module, "scale")} == {s}
    other = (lambda a: (a / s + 3.0).sin()) if first else (lambda a: ((a + 3.0) / s).sin())
    assert not matches(pattern, graph_of(other, [torch.randn(4)]), "scale")


def test_the_last_bit_of_an_inverse_does_not_count():
    unlike = [d for d in range(2, 100) if d**-0.5 != 1 / math.sqrt(d)]
    assert unlike
    for d in unlike[:5]:
        module = graph_of(lambda a, d=d: (a / math.sqrt(d)).sin(), [torch.randn(4)])
        assert matches(op(aten.mul, x, d**-0.5), module, "scale")
        assert not matches(op(aten.mul, x, d**-0.5 * (1 + 1e-12)), module, "scale")


def test_a_rounding_division_is_no_scale():
    module = graph_of(lambda a: torch.div(a, 4.0, rounding_mode="floor").sin(), [torch.randn(4)])
    assert not matches(op(aten.mul, x, const("s")), module, "scale")


def test_a_division_of_integers_is_no_product():
    module = graph_of(lambda a: (a / 4).sin(), [torch.arange(4)])
    assert not matches(op(aten.mul, x, const("s")), module, "scale")


# ---------------------------------------------------------------------------------------------- always: views and orders


@pytest.mark.parametrize(
    ("pattern", "programs"),
    [
        (
            op(aten.permute, x, [0, 2, 1]),
            [
                lambda a: a.transpose(1, 2),
                lambda a: a.transpose(-1, -2),
                lambda a: a.mT,
                lambda a: a.permute(0, -1, -2),
            ],
        ),
        (
            op(aten.transpose, x, -2, -1),
            [lambda a: a.transpose(2, 1), lambda a: a.permute(0, 2, 1), lambda a: a.swapaxes(1, 2)],
        ),
        (op(aten.view, x, [2, 12]), [lambda a: a.reshape(2, -1), lambda a: a.view(2, 12), lambda a: a.view(-1, 12)]),
        (op(aten.square, x), [lambda a: a * a, lambda a: a**2, lambda a: a.pow(2.0), torch.square]),
        (op(aten.mul, x, x), [lambda a: a * a, lambda a: a**2, torch.square]),
        (op(aten.sub, const("c"), x), [lambda a: 1 - a, lambda a: torch.rsub(a, 1)]),
    ],
)
@pytest.mark.parametrize("stage", ["joint", "pre_grad"])
def test_spellings_that_give_the_same_bits_are_one(pattern, programs, stage):
    for program in programs:
        module = graph_of(lambda a, p=program: p(a).sin(), [torch.randn(2, 3, 4)], stage)
        assert len(matches(pattern, module)) == 1, module.graph


def test_a_transposition_matches_in_any_rank_but_not_another_permutation():
    pattern = op(aten.transpose, x, -2, -1)
    for rank in (2, 3, 5):
        assert matches(pattern, graph_of(lambda a: a.transpose(-1, -2).sin(), [torch.randn(*range(2, 2 + rank))]))
    assert not matches(pattern, graph_of(lambda a: a.transpose(0, 1).sin(), [torch.randn(2, 3, 4)]))
    assert not matches(pattern, graph_of(lambda a: a.permute(2, 0, 1).sin(), [torch.randn(2, 3, 4)]))


@pytest.mark.parametrize("name", ["add", "mul", "eq", "logaddexp", "hypot"])
def test_commutative_operators_take_their_operands_in_either_order(name):
    fn = getattr(torch, name)
    pattern = op(getattr(aten, name), op(aten.sin, x), op(aten.cos, x))
    for program in (lambda a: fn(a.sin(), a.cos()), lambda a: fn(a.cos(), a.sin())):
        assert len(matches(pattern, graph_of(program, [torch.randn(4)]))) == 1


@pytest.mark.parametrize("name", ["sub", "div", "pow", "atan2", "gt", "maximum", "fmin"])
def test_others_do_not(name):
    fn = getattr(torch, name)
    pattern = op(getattr(aten, name), op(aten.sin, x), op(aten.cos, x))
    assert len(matches(pattern, graph_of(lambda a: fn(a.sin(), a.cos()), [torch.randn(4)]))) == 1
    assert not matches(pattern, graph_of(lambda a: fn(a.cos(), a.sin()), [torch.randn(4)]))


def test_an_added_multiple_is_not_commutative():
    pattern = op(aten.add, op(aten.sin, x), op(aten.cos, x), alpha=2)
    assert matches(pattern, graph_of(lambda a: torch.add(a.sin(), a.cos(), alpha=2), [torch.randn(4)]))
    assert not matches(pattern, graph_of(lambda a: torch.add(a.cos(), a.sin(), alpha=2), [torch.randn(4)]))


# --------------------------------------------------------------------------------------------------------------- casts


def test_a_cast_is_no_nothing_unless_it_is_overlooked():
    pattern = op(aten.exp, op(aten.sin, x))
    module = graph_of(lambda a: a.sin().double().exp(), [torch.randn(4)])
    assert not matches(pattern, module)
    (found,) = matches(pattern, module, "casts")
    assert len(found.nodes) == 3


def test_a_cast_that_is_also_used_elsewhere_is_a_mismatch():
    pattern = op(aten.exp, op(aten.sin, x))
    module = graph_of(lambda a: (lambda d: (d.exp(), d + 1))(a.sin().double()), [torch.randn(4)])
    assert not matches(pattern, module, "casts")


@pytest.mark.parametrize("through", [torch.int32, torch.bool])
def test_a_cast_to_integers_is_never_overlooked(through):
    pattern = op(aten.exp, op(aten.sin, x))
    assert not matches(pattern, graph_of(lambda a: a.sin().to(through).exp(), [torch.randn(4)]), "casts")


def test_results_keep_their_dtype_and_users_theirs():
    run = replaced(
        op(aten.exp, op(aten.sin, x)),
        lambda x: torch.exp(torch.sin(x)),
        lambda a: (a.float().sin().exp(), a + 1),
        [torch.randn(4).half()],
        tolerate="casts",
    )
    module = run.module
    values = [n.meta["val"].dtype for n in module.graph.output_node().args[0]]
    assert values == [torch.float32, torch.float16]


def test_flatten_is_a_view_before_autograd():
    module = graph_of(lambda a: a.flatten().sin(), [torch.randn(4, 4)], "pre_grad")
    assert matches(op(aten.view, x, [16]), module)
    assert not matches(op(aten.view, x, [4, 4]), module)


def test_one_over_a_root_is_its_inverse():
    for stage in ("pre_grad", "joint"):
        module = graph_of(lambda a: (1.0 / torch.sqrt(a)).sin(), [torch.rand(4, 4)], stage)
        assert matches(op(aten.rsqrt, x), module, "scale")
        assert not matches(op(aten.rsqrt, x), module)


def test_a_dtype_of_a_softmax_is_a_cast():
    pattern = op(aten.mul, op(aten.softmax, x, -1), w)
    program = lambda a, b: torch.softmax(a, -1, dtype=torch.float32).to(a.dtype) * b  # noqa: E731
    module = graph_of(program, [torch.randn(4, 4, dtype=torch.bfloat16)] * 2, "pre_grad")
    assert matches(pattern, module, "casts")
    assert not matches(pattern, module)


def test_eight_bits_are_no_cast_to_overlook():
    pattern = op(aten.mul, op(aten.sin, x), w)
    program = lambda a, b: a.sin().to(torch.float8_e4m3fn).to(torch.float32) * b  # noqa: E731
    assert not matches(pattern, graph_of(program, [torch.randn(4, 4)] * 2), "casts")
    half = lambda a, b: a.sin().to(torch.bfloat16).to(torch.float32) * b  # noqa: E731
    assert matches(pattern, graph_of(half, [torch.randn(4, 4)] * 2), "casts")
