"""Why a pattern does not match: twenty programs that are nearly what a pattern looks for, each with one thing broken."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from eductor.errors import BadPattern
from eductor.graph.capture import capture
from eductor.graph.view import GraphView
from eductor.patterns import ANY, any_of, computed, const, list_of, op, outputs, pattern_pass, repeated, var, why_not
from eductor.patterns.trace.tracing import pattern_of, search_inputs
from eductor.pipeline import f32

aten = torch.ops.aten
T = torch.randn


def rms_norm(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def layer_norm(x, w, b):
    centered = x - x.mean(-1, keepdim=True)
    return centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-5) * w + b


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x.pow(3))))


def traced(fn, *inputs):
    return pattern_of(fn, search_inputs(fn, inputs))


RMS_NORM = traced(rms_norm, f32(4, 8), f32(8), 1e-6)
LAYER_NORM = traced(layer_norm, f32(4, 8), f32(8), f32(8))
GELU = traced(gelu, f32(4, 8))
SCORES = op(aten.bmm, var("q"), op(aten.permute, var("k"), [0, 2, 1]))
ATTENTION = op(aten.bmm, op(aten._softmax, SCORES, -1, False), var("v"))
PERMUTES = op(aten.permute, op(aten.permute, var("x"), const("inner"), users=1), const("outer"))
SPLIT = op(aten.split, var("x"), const("size"), 1, users=ANY)
JOINED = op(aten.cat, list_of(op(aten.relu, op(operator.getitem, SPLIT, const("i")))), 1)
SHARED = op(aten.exp, var("x"), users=ANY)
DOUBLE = outputs(op(aten.sin, SHARED), op(aten.cos, SHARED))
ADDED = op(aten.add, op(aten.mm, var("a"), var("b")), var("c"))
SUBTRACTED = op(aten.sub, op(aten.exp, var("x")), op(aten.relu, var("y")))
SCALED = op(aten.mul, op(aten.mm, var("a"), var("b")), 0.125)
NEAR_ONE = op(aten.relu, op(aten.mul, var("x"), const("c", lambda c: 0.5 < c < 2 or f"{c} is no factor near 1")))
APART = op(aten.mm, var("a", exclusive=True), op(aten.relu, var("b", exclusive=True)))
CAST = op(torch.ops.prims.convert_element_type, op(aten.sin, var("x")), torch.bfloat16)
PAIR = op(aten.cat, [op(aten.sin, var("x")), op(aten.cos, var("x"))], 1)
FLAT = op(aten.view, op(aten.mm, var("x"), var("w")), [-1])
BY_SIZE = op(aten.div, op(aten.sum, var("x")), computed("x.shape[-1]"))
CUBE = op(aten.sum, op(aten.pow, var("x"), 3))


def returns_scores(q, k, v):
    scores = q.bmm(k.transpose(1, 2))
    return scores.softmax(-1).bmm(v), scores


def uses_the_inner_twice(x):
    inner = x.permute(1, 0)
    return inner.permute(1, 0) + 1, inner * 2


def one_part_is_not_relu(x):
    a, b = x.split(4, 1)
    return torch.cat([a.relu(), b.sigmoid()], 1)


def parts_of_two(x, y):
    return torch.cat([x.split(4, 1)[0].relu(), y.split(4, 1)[1].relu()], 1)


@dataclass(frozen=True)
class Near:
    """A program that is nearly a pattern: the operator whose call is wrong (the last one of several), and why."""

    pattern: Any
    fn: Callable[..., Any]
    inputs: Sequence[torch.Tensor]
    operator: Any
    reason: str
    tolerate: tuple[str, ...] = ()
    which: int = -1


X, W, B, SQUARE, QKV = T(4, 8), T(8), T(8), T(8, 8), [T(2, 4, 8)] * 3

NEAR: dict[str, Near] = {
    "mean over another dim": Near(
        RMS_NORM,
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * w,
        [X, W],
        aten.mean,
        "dim is [0], the pattern wants [-1]",
        ("casts", "scale"),
    ),
    "another power": Near(
        RMS_NORM,
        lambda x, w: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6) * w,
        [X, W],
        aten.pow,
        "exponent is 4, the pattern wants 2",
        ("casts", "scale"),
    ),
    "something between": Near(
        RMS_NORM,
        lambda x, w: (x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6)).relu() * w,
        [X, W],
        aten.relu,
        "is used by aten.relu (relu), the pattern wants aten.mul",
        ("casts", "scale"),
    ),
    "not the same tensor": Near(
        RMS_NORM,
        lambda x, w: x.sin() * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
        [X, W],
        aten.mul,
        "self is sin, the pattern wants arg0_1 here as well",
        which=0,
    ),
    "softmax over another dim": Near(
        ATTENTION, lambda q, k, v: q.bmm(k.mT).softmax(1).bmm(v), QKV, aten._softmax, "dim is 1, the pattern wants -1"
    ),
    "scores are returned": Near(ATTENTION, returns_scores, QKV, aten.bmm, "bmm is also returned by the graph", which=0),
    "keys are not transposed": Near(
        ATTENTION, lambda q, k, v: q.bmm(k).softmax(-1).bmm(v), [T(2, 8, 8)] * 3, aten.bmm, "mat2 is the input", which=0
    ),
    "the inner permute is used elsewhere": Near(
        PERMUTES, uses_the_inner_twice, [X], aten.permute, "has 2 users, the pattern wants 1", which=0
    ),
    "one element of a list": Near(
        JOINED, one_part_is_not_relu, [X], aten.sigmoid, "aten.sigmoid (sigmoid), the pattern wants aten.relu"
    ),
    "elements of two splits": Near(JOINED, parts_of_two, [X, X], aten.relu, "stands on another node"),
    "another epsilon": Near(
        LAYER_NORM,
        lambda x, w, b: (c := x - x.mean(-1, True)) * torch.rsqrt((c * c).mean(-1, True) + 1e-3) * w + b,
        [X, W, B],
        aten.add,
        "other is 0.001, the pattern wants 1e-05",
        which=0,
    ),
    "the mean is not kept": Near(
        LAYER_NORM,
        lambda x, w, b: (c := x - x.mean(-1, True)) * torch.rsqrt((c * c).mean(-1) + 1e-5) * w + b,
        [SQUARE, W, B],
        aten.mean,
        "keepdim is False, the pattern wants True",
    ),
    "another constant": Near(
        GELU,
        lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x.pow(3)))),
        [X],
        aten.mul,
        "other is 0.8, the pattern wants 0.79788456",
        which=2,
    ),
    "another function": Near(
        GELU,
        lambda x: 0.5 * x * (1 + torch.erf(0.79788456 * (x + 0.044715 * x.pow(3)))),
        [X],
        aten.erf,
        "aten.erf (erf), the pattern wants aten.tanh",
    ),
    "a factor that is not mentioned": Near(
        ADDED,
        lambda a, b, c: torch.add(a @ b, c, alpha=2),
        [SQUARE] * 3,
        aten.add,
        "alpha is 2 (the default is 1), which the pattern does not mention",
    ),
    "the wrong way round": Near(
        SUBTRACTED,
        lambda x, y: y.relu() - x.exp(),
        [X, X],
        aten.sub,
        "self of sub is relu, the pattern wants exp there",
    ),
    "another scale": Near(
        SCALED, lambda a, b: a @ b * 0.25, [SQUARE] * 2, aten.mul, "other is 0.25, the pattern wants 0.125"
    ),
    "a condition on a constant": Near(NEAR_ONE, lambda x: (x * 7.0).relu(), [X], aten.mul, "7.0 is no factor near 1"),
    "the same tensor twice": Near(APART, lambda a: a.mm(a.relu()).sin(), [SQUARE], None, "a and b are the same node"),
    "another dtype": Near(
        CAST, lambda x: x.sin().half(), [X], aten._to_copy, "dtype is torch.float16, the pattern wants torch.bfloat16"
    ),
    "a longer list": Near(
        PAIR,
        lambda x: torch.cat([x.sin(), x.cos(), x], 1),
        [X],
        aten.cat,
        "tensors is a list of 3, the pattern wants a list of 2",
    ),
    "another shape": Near(
        FLAT, lambda x, w: (x @ w).view(2, -1), [SQUARE] * 2, aten.view, "size is [2, 32], the pattern wants [-1]"
    ),
    "a second result that is missing": Near(
        DOUBLE,
        lambda x: (x.exp().sin(), x.exp().cos()),
        [X],
        aten.exp,
        "exp is used by aten.sin (sin), the pattern wants aten.cos",
        which=0,
    ),
    "a size that does not follow": Near(
        BY_SIZE, lambda x: x.sum() / 4, [X], aten.div, "other is 4, the pattern wants x.shape[-1], which is 8"
    ),
    "a power that is compared": Near(
        CUBE, lambda x: x.pow(2).sum(), [X], aten.pow, "exponent is 2, the pattern wants 3"
    ),
}


def wrong_node(near: Near, graph: Graph) -> Node:
    """The node that the program gets wrong, found by what it calls."""
    if near.operator is None:
        return next(iter(graph.find_nodes(op="placeholder")))
    calls = [n for n in graph.nodes if getattr(n.target, "overloadpacket", n.target) is near.operator]
    return calls[near.which]


def traced_program(near: Near) -> GraphModule:
    return capture(near.fn, list(near.inputs), "aten")


@pytest.mark.parametrize("case", NEAR)
def test_the_nearest_miss_is_the_node_that_is_wrong(case):
    near = NEAR[case]
    module = traced_program(near)
    found = why_not(near.pattern, module, tolerate=near.tolerate)
    assert found.matches == 0
    assert near.reason in found.miss.reason
    assert found.miss.node is wrong_node(near, module.graph)
    assert found.miss.pattern
    assert found.miss.reason in str(found)
    assert f"->    {found.miss.node.name} = " in str(found) or found.miss.node.op == "placeholder"


def test_at_least_twenty_programs_are_nearly_right():
    assert len(NEAR) >= 20


def test_how_far_it_got():
    found = why_not(GELU, traced_program(NEAR["another function"]))
    assert (found.found, found.calls) == (4, 8)
    assert why_not(SCALED, traced_program(NEAR["another scale"])).found == 2


def test_all_that_is_wrong_is_kept():
    module = capture(lambda q, k, v: torch.add(q.bmm(k.mT).softmax(1), 0.5, alpha=2), QKV, "aten")
    found = why_not(op(aten.add, op(aten._softmax, SCORES, -1, False), 0.25), module)
    reasons = [found.miss.reason, *(missed.reason for missed in found.also)]
    assert [r.split(" is ")[0] for r in reasons] == ["alpha", "other", "dim"]
    assert all(missed.reason in str(found) for missed in found.also)


def test_a_match_says_so():
    module = capture(lambda x, w: rms_norm(rms_norm(x, w, 1e-6), w, 1e-5), [X, W], "aten")
    found = why_not(RMS_NORM, module)
    assert (found.matches, found.miss) == (2, None)
    assert str(found).endswith("matches 2 times")


def test_a_missing_operator_is_named():
    found = why_not(RMS_NORM, capture(lambda x: x.sin() + 1, [X], "aten"))
    assert found.miss.node is None
    assert "aten.rsqrt" in found.lacking
    assert "the graph has no aten.mul, no aten.rsqrt" in str(found)
    found = why_not(op(aten.cos, var("x")), capture(lambda x: x.sin(), [X], "aten"))
    assert str(found).endswith("the graph has no aten.cos")
    assert (found.found, found.calls) == (0, 1)
    found = why_not(op(aten.add.Scalar, var("x"), 1.0), capture(lambda x: x + 1.0, [X], "aten"))
    assert str(found).endswith("the graph has no aten.add.Scalar")


@pytest.fixture
def scales():
    @pattern_pass(stage="joint", numerics="exact")
    def fold_scales():
        "Folds scales."

    @fold_scales.rule(
        op(aten.mul, op(aten.mul, var("x"), const("a")), const("b")), check=lambda m: m["a"] > 1 or f"{m['a']} is small"
    )
    def pair(match, graph, rewrite):
        pass

    @fold_scales.rule(op(aten.relu, op(aten.mul, var("x"), 2.0)))
    def doubled(match, graph, rewrite):
        pass

    return fold_scales


def test_the_reason_of_a_check(scales):
    module = capture(lambda x: x * 0.5 * 3.0, [X], "aten")
    rule = scales.rules.rules[0]
    found = why_not(rule, module)
    assert (found.matches, found.miss) == (1, None)
    assert [(m.reason, m.node.name) for m in found.refused] == [("0.5 is small", "mul_1")]
    assert str(found).startswith("pair matches once, of which its check refuses 1\n  mul_1: 0.5 is small")
    assert why_not(rule, capture(lambda x: x * 5.0 * 3.0, [X], "aten")).refused == ()


def test_each_rule_of_a_pass(scales):
    found = why_not(scales, capture(lambda x: (x * 5.0 * 3.0).relu(), [X], "aten"))
    assert found.matches == 1
    assert {name: w.matches for name, w in found.rules.items()} == {"pair": 1, "doubled": 0}
    assert found.rules["doubled"].miss.reason == "other is 3.0, the pattern wants 2.0"
    assert str(found) == f"{found.rules['pair']}\n{found.rules['doubled']}"


def test_the_line_of_the_program_is_shown():
    def program(a, b):
        return torch.relu(a - b)

    module = capture(program, [X, X], "torch")
    found = why_not(op(torch.relu, op(torch.add, var("a"), var("b"))), module)
    assert found.miss.source.endswith("return torch.relu(a - b)")
    assert f"  at {found.miss.source}\n" in str(found)


def test_graphs_in_every_form():
    module = capture(lambda x: (x * 3.0).relu(), [X], "aten")
    pattern = op(aten.relu, op(aten.mul, var("x"), 2.0))
    alone = Graph()
    alone.graph_copy(module.graph, {})
    for graph in (module, module.graph, GraphView(module), alone):
        found = why_not(pattern, graph)
        nodes = graph.nodes if isinstance(graph, (Graph, GraphView)) else graph.graph.nodes
        assert found.miss.node in list(nodes)
        assert found.miss.reason == "other is 3.0, the pattern wants 2.0"


def test_bodies_of_higher_order_operators_are_looked_at():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: (x * 3.0).relu(), lambda x: x.sin(), (x,))

    module = capture(program, [X], "torch")
    found = why_not(op(torch.relu, op(torch.mul, var("x"), 2.0)), module)
    assert found.miss.reason == "other is 3.0, the pattern wants 2.0"
    assert found.miss.node.graph is not module.graph


def test_alternatives_give_the_nearest():
    pattern = op(
        aten.relu, any_of(op(aten.add, op(aten.exp, var("x")), 1.0), op(aten.mul, op(aten.sin, var("x")), 2.0))
    )
    found = why_not(pattern, capture(lambda x: (x.sin() * 3.0).relu(), [X], "aten"))
    assert (found.found, found.calls) == (3, 3)
    assert found.miss.reason == "other is 3.0, the pattern wants 2.0"


def test_every_use_of_what_repetitions_share():
    shared = op(aten.exp, var("x"), users=ANY)
    module = capture(lambda x: ((e := x.exp()).sin(), e.cos()), [X], "aten")
    found = why_not(repeated(op(aten.sin, shared)), module)
    assert found.miss.reason == "cos uses exp, too, but not as aten.sin(aten.exp(x))"
    assert found.miss.node.target is aten.cos.default


def test_what_is_no_pattern():
    with pytest.raises(BadPattern, match="give an expression"):
        why_not(abs, capture(lambda x: x.sin(), [X], "aten"))


def test_the_graph_is_left_alone(scales):
    module = capture(lambda x: (x * 0.5 * 3.0).relu(), [X], "aten")
    before = str(module.graph)
    why_not(scales, module)
    assert str(module.graph) == before


def test_a_large_graph_and_a_large_pattern_take_seconds():
    def block(x, w, scale=0.79788456):
        y = layer_norm(x, w, w)
        z = 0.5 * y * (1 + torch.tanh(scale * (y + 0.044715 * y.pow(3))))
        return x + rms_norm(z, w, 1e-6)

    pattern = traced(block, f32(4, 8), f32(8), 0.5)

    def model(x, w):
        for _ in range(80):
            x = block(x, w).relu() + 1
        return x

    module = capture(model, [X, W], "aten")
    assert len(module.graph.nodes) > 1900
    started = time.perf_counter()
    found = why_not(op(aten.sin, pattern), module)
    assert time.perf_counter() - started < 10  # about a second, on a machine with nothing else to do
    assert found.calls > 20


def test_a_rule_that_is_left_out_says_why():
    @pattern_pass(stage="joint", numerics="exact")
    def left_out():
        """Has a rule that cannot be traced."""

    left_out.replace(lambda x, word: x.sin(), lambda x, word: x.sin(), inputs=[f32(4), "w"], name="bad")
    answer = why_not(left_out, capture(lambda a: a.sin(), [torch.randn(4)], "aten"))
    assert "the rule bad is left out" in str(answer)
    assert "'word'" in str(answer)


def test_what_is_no_graph_is_an_error():
    with pytest.raises(BadPattern, match="give a graph"):
        why_not(op(torch.ops.aten.sin, var("x")), lambda a: a.sin())
