"""Graphs as Python and back."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves

from eductor import BadGraph
from eductor.graph import capture, first_difference, from_python, structural_hash, to_python, type_of
from eductor.graph.text.printer import around, literal, path_of
from eductor.graph.values.value_comparison import is_bitwise_equal


def torch_level(x, w):
    y = x.view(2, 3).permute(0, 1)
    z = F.dropout(F.relu(y + 1, inplace=True), 0.5, True)
    e = torch.cat([F.linear(z, w)] * 2, axis=-1)
    q, r = e.chunk(2, -1)
    e[0] = 1
    with torch.no_grad():
        s = e * float("inf")
    return q[:, None, 1:].float(), r.to(torch.float16), s, torch.zeros(2, device="cpu", dtype=torch.int64), e[..., None]


def aten_level(x, w):
    q, r = torch.cat([x @ w.t(), x @ w.t()], -1).split(2, -1)[:2]
    return q.softmax(-1), r.sum(dim=(0, 1), keepdim=True), torch.full((2,), float("-inf")), x.topk(2)


PROGRAMS = [
    (torch_level, "torch", False),
    (aten_level, "aten", False),
    (torch_level, "torch", True),
    (aten_level, "aten", True),
]


@pytest.mark.parametrize(("program", "dialect", "dynamic"), PROGRAMS)
def test_round_trip(program, dialect, dynamic):
    inputs = [torch.randn(2, 3), torch.randn(4, 3)]
    module = capture(program, inputs, dialect, dynamic=dynamic and program is aten_level)
    text = to_python(module.graph)
    back = from_python(text)
    assert first_difference(module.graph, back.graph) is None
    assert to_python(back.graph) == text
    assert structural_hash(back.graph) == structural_hash(module.graph)


@pytest.mark.parametrize(("program", "dialect", "dynamic"), PROGRAMS[:2])
def test_printed_graphs_run(program, dialect, dynamic):
    inputs = [torch.randn(2, 3), torch.randn(4, 3)]
    module = capture(program, inputs, dialect)
    scope: dict = {}
    exec(to_python(module.graph), scope)
    torch.manual_seed(0)
    expected = module.graph.owning_module.forward(*inputs) if dialect == "aten" else module(*inputs)
    torch.manual_seed(0)
    got = scope["forward"](*inputs)
    for a, b in zip(tree_leaves(expected), tree_leaves(got), strict=True):
        assert is_bitwise_equal(a, b)


def test_modules_and_attributes_are_selfs():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)
            self.scale = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return self.linear(x) * self.scale

    model = Model()
    traced = torch.fx.symbolic_trace(model)
    text = to_python(traced.graph)
    assert "def forward(self, x):" in text
    assert "linear = self.linear(x)" in text
    back = from_python(text, model)
    x = torch.randn(2, 3)
    assert torch.equal(back(x), model(x))


def test_higher_order_operators_and_defaults():
    graph = torch.fx.Graph()
    x = graph.create_node("placeholder", "x", (2.5,))
    graph.output(graph.call_function(operator.add, (x, 1)))
    text = to_python(graph)
    assert "def forward(x=2.5):" in text
    assert first_difference(graph, from_python(text).graph) is None
    assert path_of(torch.ops.higher_order.cond) == "torch.ops.higher_order.cond"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 3), "f32[2, 3]"),
        (torch.zeros(2, 3, dtype=torch.bfloat16).t(), "bf16[3, 2]{1, 3}"),
        (torch.zeros(4)[1:], "f32[3]+1"),
        (torch.zeros(()), "f32[]"),
        (torch.zeros(2, requires_grad=True), "f32[2] grad"),
        (torch.zeros(2, device="meta"), "f32[2] meta"),
        ((torch.zeros(1), torch.zeros(2, dtype=torch.int64)), "(f32[1], i64[2])"),
        (3, "int"),
        (None, ""),
    ],
)
def test_types(value, text):
    assert type_of(value) == text


def test_callables_that_cannot_be_found_print_and_are_refused_on_the_way_back():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(lambda a: a, (x,)))
    text = to_python(graph)
    assert "unprintable(" in text
    with pytest.raises(BadGraph, match="cannot find"):
        from_python(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no function"),
        ("def forward(x):\n    x += 1\n", "expected"),
        ("def forward(x):\n    y = torch.no_such_thing(x)\n", "cannot find `torch.no_such_thing`"),
        ("def forward(x):\n    y = torch.sin(z)\n", "cannot read `z`"),
    ],
)
def test_bad_text_is_refused_with_its_line(text, message):
    with pytest.raises(BadGraph, match=message):
        from_python(text)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.complex_numbers(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(values)
def test_constants_survive(value):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(print, (x, value)))
    assert first_difference(graph, from_python(to_python(graph)).graph) is None


def test_literals():
    assert literal(float("nan")) == 'float("nan")'
    assert literal(torch.device("cuda", 1)) == "torch.device('cuda:1')"
    assert literal((1,)) == "(1,)"
    assert literal(slice(None, 2)) == "slice(None, 2, None)"


def test_ten_lines_around_a_place():
    module = capture(
        lambda x: x.sin().cos().tan().exp().abs().neg().sqrt().relu().tanh().floor().ceil(), [torch.randn(2)], "aten"
    )
    shown = around(module.graph, "abs_1", lines=10).splitlines()
    assert len(shown) == 10
    assert next(line for line in shown if line.startswith("->")).strip("-> ").startswith("abs_1 = ")
    assert len(around(module.graph, None).splitlines()) == 10
    assert "->" not in around(module.graph, "nobody")


def test_names_that_the_text_needs_are_not_shadowed():
    graph = torch.fx.symbolic_trace(lambda operator: operator + 1).graph
    text = to_python(graph)
    assert "operator_ + 1" in text or "operator.add(operator_, 1)" in text
    assert first_difference(graph, from_python(text).graph) is None


def test_complex_constants():
    for value in (complex(float("inf"), 1), complex(-0.0, 2)):
        graph = torch.fx.Graph()
        graph.output(graph.call_function(print, (graph.placeholder("x"), value)))
        assert first_difference(graph, from_python(to_python(graph)).graph) is None


def test_modules_in_a_list():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    traced = torch.fx.symbolic_trace(model)
    back = from_python(to_python(traced.graph), model)
    assert first_difference(traced.graph, back.graph) is None
    x = torch.randn(2, 3)
    assert torch.equal(back(x), model(x))
