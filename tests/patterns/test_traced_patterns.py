"""Patterns from functions: what is free, what is compared, what cannot be a pattern."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pattern_tools import aten, by_anchor, changed, count, graph_of, matches, one_rule, passing, refused, replaced
from torch.fx import Node

from eductor.errors import BadPattern, EductorWarning, PassFailed
from eductor.observe.manual.manual import run_pass
from eductor.patterns import op, var
from eductor.patterns.language.pattern import Op, Outputs, Var
from eductor.patterns.match.call_reading import call_parameters
from eductor.patterns.trace.search_function import Traced
from eductor.patterns.trace.tracing import pattern_of, search_inputs
from eductor.pipeline import Recorder, b8, f32, i64

X = torch.linspace(-1, 2, 16).reshape(4, 4)


def traced(fn, *examples, joint=False, dialect="aten"):
    return pattern_of(fn, search_inputs(fn, examples, joint=joint), dialect=dialect)


@pytest.mark.parametrize("dialect", ["aten", "torch"])
@pytest.mark.parametrize(
    ("search", "program", "bound"),
    [
        (lambda x, s: x * s, lambda a: a * 0.37, 0.37),
        (lambda x, s: x / s, lambda a: a / 0.37, 0.37),
        (lambda x, s: x * (1 / s), lambda a: a * 4.0, 0.25),
        (lambda x, s: x * -s, lambda a: a * -0.5, None),
        (lambda x, s: x * math.sqrt(s), lambda a: a * 3.0, None),
        (lambda x, s: x + s, lambda a: a + 1e-5, 1e-5),
        (lambda x, s: (x + s) * s, lambda a: (a + 0.5) * 0.5, 0.5),
    ],
)
def test_a_number_that_is_a_parameter_is_free(dialect, search, program, bound):
    if bound is None:  # it is not in the pattern by itself, so that nothing could be bound to it
        with pytest.raises(BadPattern, match="has a parameter 's' that cannot be found"):
            traced(search, f32(4, 4), 0.5, dialect=dialect)
        return
    pattern = traced(search, f32(4, 4), 0.5, dialect=dialect)
    stage = "pre_grad" if dialect == "torch" else "joint"
    (found, *_) = matches(pattern, graph_of(lambda a: program(a).cos(), [X], stage))
    value = found["s"]
    assert value == pytest.approx(bound)


def test_a_number_that_is_used_twice_must_be_the_same():
    pattern = traced(lambda x, s: (x + s) * (1 - s), f32(4, 4), 0.5)
    assert matches(pattern, graph_of(lambda a: ((a + 0.25) * 0.75).cos(), [X]))
    assert not matches(pattern, graph_of(lambda a: ((a + 0.25) * 0.5).cos(), [X]))


def test_a_number_in_the_function_is_compared():
    pattern = traced(lambda x: x * 3.0 + 1, f32(4, 4))
    assert matches(pattern, graph_of(lambda a: (a * 3.0 + 1).cos(), [X]))
    assert not matches(pattern, graph_of(lambda a: (a * 3.0 + 2).cos(), [X]))


def test_a_scale_of_a_size_follows_it():
    pattern = traced(lambda q, k: q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), f32(2, 6, 8), f32(2, 6, 8))
    for d, fits in ((16, True), (9, True), (5, True)):
        given = [torch.randn(3, 7, d) for _ in range(2)]
        right = graph_of(lambda q, k, d=d: (q @ k.transpose(1, 2) / math.sqrt(d)).cos(), given)
        wrong = graph_of(lambda q, k, d=d: (q @ k.transpose(1, 2) / math.sqrt(d + 1)).cos(), given)
        assert bool(matches(pattern, right)) is fits
        assert not matches(pattern, wrong)


def test_a_scale_of_a_size_that_is_unknown():
    def attention(q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])

    run = replaced(
        attention,
        lambda q, k: (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1),
        lambda q, k: attention(q, k).neg(),
        [torch.randn(2, 5, 6), torch.randn(2, 5, 6)],
        inputs=[f32(2, 8, 16)] * 2,
        tolerate="scale",
        dynamic=True,
    )
    assert changed(run)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_probability_of_a_dropout_is_free(p):
    run = replaced(
        lambda x, p: F.dropout(x, p) * 2,
        lambda x, p: F.dropout(x * 2, p),
        lambda a: F.dropout(a, p) * 2,
        [X],
        inputs=[f32(4, 4), 0.3],
        stage="pre_grad",
    )
    (node,) = (n for n in changed(run).graph.nodes if n.target is aten.dropout.default)
    assert node.args[1] == p


def test_a_whole_number_that_is_a_parameter_is_a_size():
    pattern = traced(lambda x, n: x.reshape(n, -1).sin(), f32(4, 6), 3)
    (found,) = matches(pattern, graph_of(lambda a: a.reshape(2, 8).sin() * 2, [X]))
    assert found["n"] == 2


def test_sizes_follow_from_the_inputs():
    pattern = traced(lambda x: x.reshape(x.shape[0] * 2, x.shape[1] // 2).sin(), f32(4, 6))
    assert matches(pattern, graph_of(lambda a: a.reshape(8, 2).sin() * 2, [X]))
    assert not matches(pattern, graph_of(lambda a: a.reshape(2, 8).sin() * 2, [X]))


def test_an_input_that_is_not_used_is_an_error():
    with pytest.raises(BadPattern, match="has a parameter 'y'"):
        traced(lambda x, y: x.sin(), f32(4, 4), f32(4, 4))
    with pytest.raises(BadPattern, match="takes 2 inputs"):
        traced(lambda x, y: x + y, f32(4, 4))
    with pytest.raises(BadPattern, match="creates a tensor: make it an input"):
        traced(lambda x: x + X, f32(4, 4))
    with pytest.raises(BadPattern, match="cannot be traced on the example inputs"):
        traced(lambda x: x.reshape(3, 5), f32(4, 4))


def test_a_function_that_branches_on_its_number_is_an_error():
    with pytest.raises(BadPattern, match="makes other calls for other numbers or sizes"):
        traced(lambda x, s: (x * s).sin() if s > 0.3 else (x * s).cos(), f32(4, 4), 0.5)


def test_a_device_is_that_of_the_inputs():
    pattern = traced(lambda x: x + torch.ones(4, device=x.device), f32(4, 4))
    assert matches(pattern, graph_of(lambda a: (a + torch.ones(4)) * 2, [X]))
    assert "cpu" not in str([p for p in (pattern.args[1].kwargs or {}).items() if p[0] == "device" and p[1] is None])
    elsewhere = graph_of(lambda a: (a + torch.ones(4, device="meta")) * 2, [X.to("meta")])
    assert matches(pattern, elsewhere)


def test_inputs_have_the_kind_of_their_examples():
    floats = traced(lambda x: x * 2, f32(4, 4))
    assert matches(floats, graph_of(lambda a: (a * 2).cos(), [X.double()]))
    assert not matches(floats, graph_of(lambda a: (a * 2).abs(), [torch.arange(16).reshape(4, 4)]))
    masks = traced(lambda m, x: x.masked_fill(m, 0.0), b8(4, 4), f32(4, 4))
    assert matches(masks, graph_of(lambda m, a: a.masked_fill(m, 0.0) * 2, [X > 0, X]))
    ints = traced(lambda i, w: F.embedding(i, w), i64(3), f32(5, 4))
    assert matches(ints, graph_of(lambda i, w: F.embedding(i, w) * 2, [torch.tensor([1, 2]), X]))


def test_a_replacement_that_computes_something_else_is_refused_by_name():
    made = one_rule(lambda x: x.sin() * 2, lambda x: x.sin() * 3, inputs=[f32(4, 4)])
    with pytest.raises(PassFailed, match="the rule joint/made:rule is refused"):
        run_pass(made, "joint", graph_of(lambda a: a.sin() * 2 + 1, [X]))


def test_a_function_may_return_an_input_beside_its_results():
    run = replaced(
        lambda x: (x.sin(), x),
        lambda x: (torch.sin(x * 1), x),
        lambda a: (lambda b: (b.sin() + 2, b + 3))(a + 2),
        [X],
        inputs=[f32(4, 4)],
    )
    assert count(changed(run), aten.mul) == 1


def test_parameters_of_the_replacement_may_have_names_of_their_own():
    made = passing()
    made.replace(lambda x, y: x.sin() * y, lambda a, b: b * a.sin(), inputs=[f32(4, 4)] * 2, name="rule")
    run = run_pass(made, "joint", graph_of(lambda a, b: a.sin() * b + 1, [X, X + 1]))
    assert not run.rejects if hasattr(run, "rejects") else True
    with pytest.raises(BadPattern, match="takes a; the pattern has x, y"):
        made.replace(lambda x, y: x.sin() * y, lambda a: a, inputs=[f32(4, 4)] * 2, name="other")


def test_the_rank_of_a_function_is_that_of_its_examples_unless_it_is_overlooked():
    def search(x):
        return x.softmax(-1) * 2

    program = lambda a: a.softmax(-1) * 2 + 1  # noqa: E731
    cube = torch.randn(2, 3, 4)
    run = replaced(search, lambda x: 2 * x.softmax(-1) * 1, program, [cube], inputs=[f32(4, 4)])
    refused(run, "x has 3 dimensions, the pattern wants 2")
    assert changed(
        replaced(search, lambda x: 2 * x.softmax(-1) * 1, program, [cube], inputs=[f32(4, 4)], tolerate="rank")
    )


# ---------------------------------------------------------------------------- parts of graphs are patterns that match them

UNARY = [torch.sin, torch.exp, torch.neg, lambda t: t * 2.5, lambda t: t + 1, lambda t: t.reshape(8, 2).reshape(4, 4)]
UNARY += [
    lambda t: t.t().contiguous(),
    lambda t: t.softmax(-1),
    lambda t: t.sum(1, keepdim=True).expand(4, 4),
    torch.square,
]
BINARY = [torch.add, torch.mul, torch.sub, lambda a, b: torch.add(a, b, alpha=2), lambda a, b: torch.cat([a, b])[:4]]
BINARY += [torch.maximum, torch.matmul]

steps = st.lists(st.tuples(st.integers(0, 16), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9)


def program_of(drawn):
    """A function of two matrices: each step applies an operation to earlier values."""

    def program(a, b):
        values = [a, b]
        for which, i, j in drawn:
            first, second = values[i % len(values)], values[j % len(values)]
            if which < len(UNARY):
                values.append(UNARY[which](first))
            else:
                values.append(BINARY[(which - len(UNARY)) % len(BINARY)](first, second))
        return values[-1], values[-2]

    return program


def cut(node, depth, inside, leaves):
    """The part of a graph above a node as an expression, so deep."""
    if not isinstance(node, Node):
        return [cut(n, depth, inside, leaves) for n in node] if isinstance(node, (list, tuple)) else node
    if node in inside:
        return inside[node]
    if depth == 0 or node.op != "call_function":
        return leaves.setdefault(node, Var(f"v{len(leaves)}"))
    names = call_parameters(node.target).names if hasattr(node.target, "overloadpacket") else ()
    args = tuple(cut(a, depth - 1, inside, leaves) for a in node.args)
    kwargs = {k: cut(v, depth - 1, inside, leaves) for k, v in node.kwargs.items()}
    assert len(args) <= len(names) or not names
    inside[node] = Op((getattr(node.target, "overloadpacket", node.target),), args, kwargs)
    return inside[node]


@settings(max_examples=40, deadline=None)
@given(steps, st.integers(0, 20), st.integers(1, 3))
def test_what_is_cut_out_of_a_graph_matches_there(drawn, at, depth):
    module = graph_of(program_of(drawn), [X, X + 0.5])
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    root = calls[at % len(calls)]
    inside, leaves = {}, {}
    pattern = cut(root, depth, inside, leaves)
    kept = {n: o for n, o in inside.items() if n is not root and any(u not in inside for u in n.users)}
    if kept:  # what others use is a result as well
        pattern = Outputs((pattern, *kept.values()))
    found = matches(pattern, module)
    wanted = tuple(inside)
    assert any(set(wanted) <= set(m.nodes) and m.outputs[0] is root for m in found), module.graph


@settings(max_examples=25, deadline=None)
@given(steps, steps, st.integers(0, 20), st.integers(1, 3))
def test_where_the_search_starts_does_not_matter(drawn, other, at, depth):
    module = graph_of(program_of(drawn), [X, X + 0.5])
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    pattern = cut(calls[at % len(calls)], depth, {}, {})
    for graph in (module, graph_of(program_of(other), [X, X + 0.5])):
        for found in by_anchor(pattern, graph):
            assert len({frozenset(f) for f in found}) == 1, found


def test_a_dtype_that_is_that_of_an_input_follows_it():
    def search(x):
        return x.softmax(-1)

    pattern = traced(search, f32(4, 4), joint=True)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        inputs = [X.to(dtype), X.to(dtype)]
        module = graph_of(lambda g, a, d=dtype: aten._softmax_backward_data(g, a.softmax(-1), -1, d), inputs)
        softmax, *_ = (n for n in module.graph.nodes if n.target is aten._softmax.default)
        module.graph.output_node().args = ((softmax, module.graph.output_node().args[0]),)
        assert len(matches(pattern, module)) == 1, dtype
    wrong = graph_of(lambda g, a: aten._softmax_backward_data(g, a.softmax(-1), -1, torch.float16), [X, X])
    softmax, *_ = (n for n in wrong.graph.nodes if n.target is aten._softmax.default)
    wrong.graph.output_node().args = ((softmax, wrong.graph.output_node().args[0]),)
    assert not matches(pattern, wrong)


def test_a_dtype_that_is_written_down_does_not():
    pattern = traced(lambda x: x.sum(-1, dtype=torch.float32), f32(4, 4))
    assert matches(pattern, graph_of(lambda a: a.sum(-1, dtype=torch.float32), [X.double()]))
    assert not matches(pattern, graph_of(lambda a: a.sum(-1, dtype=torch.float64), [X]))


# -------------------------------------------------------------------------------------------- parameters and other ranks


@pytest.mark.parametrize("example", [-1, 0, 1])
@pytest.mark.parametrize("dialect", ["aten", "torch"])
def test_a_dim_that_is_a_parameter_is_free(example, dialect):
    pattern = traced(lambda x, d: torch.softmax(x * 2.0, d), f32(4, 8), example, dialect=dialect)
    stage = "pre_grad" if dialect == "torch" else "joint"
    for dim in (0, 1, -1):
        (match,) = matches(pattern, graph_of(lambda a, d=dim: torch.softmax(a * 2.0, d), [X], stage))
        assert match["d"] == dim


def test_a_flag_that_is_a_parameter_is_free():
    pattern = traced(lambda x, keep: (x * 2).sum(0, keepdim=keep), f32(4, 8), True)
    for keep in (True, False):
        (match,) = matches(pattern, graph_of(lambda a, k=keep: (a * 2).sum(0, keepdim=k), [X]))
        assert match["keep"] is keep


def test_a_function_that_branches_on_a_number_is_no_pattern():
    with pytest.raises(BadPattern, match="makes other calls for other numbers"):
        traced(lambda x, c: (x * c if c < 1 else x / c).sin(), f32(4, 8), 4.0)


def test_a_function_that_cannot_be_traced_breaks_nobodys_compile():
    made = passing()
    made.replace(lambda x, word: (x * 2).sin(), lambda x, word: (2 * x).sin(), inputs=[f32(4, 4), "w"], name="bad")
    made.replace(op(aten.exp, op(aten.cos, var("x"))), lambda x: torch.exp(torch.cos(x * 1)), name="good")
    program = lambda a: (a * 2).sin() + a.cos().exp()  # noqa: E731
    recorder = Recorder()
    options = {"engine": "aten", "passes": [made], "instruments": [recorder]}
    with pytest.warns(EductorWarning, match="the rule bad is left out: <lambda> has a parameter 'word'"):
        got = torch.compile(program, backend="eductor", options=options)(X)
    torch.testing.assert_close(got, program(X))
    assert "joint/made" in recorder.changed()
    torch._dynamo.reset()
    with pytest.raises(Exception, match="the rule bad is left out"):
        torch.compile(program, backend="eductor", options={**options, "strict": True})(X)


def test_a_name_of_gradients_is_taken():
    with pytest.raises(BadPattern, match="names that begin with 'tangents_'"):
        search_inputs(lambda x, tangents_w: x * tangents_w, [f32(4, 8)] * 2, joint=True)


def _ranked(search, replacement, *inputs):
    return one_rule(search, replacement, inputs=inputs, tolerate="rank")


def test_another_rank_is_what_the_function_computes_at_it():
    made = _ranked(lambda x: torch.softmax(x * 2.0, 0), lambda x: torch.softmax(x + x, 0), f32(4, 4))
    cube = torch.randn(4, 4, 4)
    assert run_pass(made, "joint", graph_of(lambda a: torch.softmax(a * 2.0, 0), [cube])).record.changed
    assert not run_pass(made, "joint", graph_of(lambda a: torch.softmax(a * 2.0, 1), [cube])).record.changed


def test_ranks_that_are_equal_in_the_examples_are_equal_in_a_match():
    pattern = Traced(
        lambda x, y: (x + y).sum(), search_inputs(lambda x, y: 0, [f32(4, 8)] * 2), "aten", any_rank=True
    ).fresh()
    assert matches(pattern, graph_of(lambda a, b: (a + b).sum(), [torch.randn(3, 4, 8)] * 2))
    assert not matches(pattern, graph_of(lambda a, b: (a + b).sum(), [torch.randn(4, 8), torch.randn(8)]))


def test_dims_of_a_new_dimension_are_counted_as_they_are():
    made = _ranked(
        lambda x: x.unsqueeze(1) * x.exp().unsqueeze(0), lambda x: x.exp().unsqueeze(0) * x.unsqueeze(1), f32(8, 8)
    )
    square = torch.randn(8, 8)
    same, other = (lambda a: a.unsqueeze(1) * a.exp().unsqueeze(0), lambda a: a.unsqueeze(-1) * a.exp().unsqueeze(-2))
    assert run_pass(made, "joint", graph_of(same, [square])).record.changed
    assert not run_pass(made, "joint", graph_of(other, [square])).record.changed


def test_examples_are_a_list_and_a_search_is_a_function():
    with pytest.raises(BadPattern, match="give a list of examples"):
        search_inputs(lambda x: x, f32(4, 8))
    with pytest.raises(BadPattern, match="nothing to look for"):
        passing().replace(3, lambda x: x, inputs=[f32(4)], name="r")


def test_a_check_that_raises_is_named():
    made = passing()
    made.replace(op(aten.sin, var("x")), lambda x: torch.sin(x * 1), check=lambda match: match["nothing"], name="asks")
    with pytest.raises(
        PassFailed, match="the check of the rule asks raises BadPattern: the pattern has no name 'nothing'"
    ):
        run_pass(made, "joint", graph_of(lambda a: a.sin(), [X]))
