"""eliminate_dead_code and stable_topological_sort."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eductor import BadGraph, Recorder, post_grad_passes
from eductor.graph import capture, from_python, is_sorted, sorted_nodes, to_python
from eductor.observe.manual.manual import run_pass
from eductor.passes.functional.stable_topological_sort import stable_topological_sort
from eductor.passes.post_grad.eliminate_dead_code import eliminate_dead_code

aten = torch.ops.aten


def dead(text):
    module = from_python(text)
    recorder = Recorder()
    post_grad_passes(
        module, is_inference=True, options={"pipeline": "post_grad(eliminate_dead_code)", "instruments": [recorder]}
    )
    return to_python(module.graph), recorder.records[0]


def test_whole_dead_chains_go():
    text, record = dead(
        """
def forward(x):
    # x: f32[2, 3]
    sin = torch.ops.aten.sin.default(x)
    split = torch.ops.aten.split.Tensor(sin, 1)
    getitem = operator.getitem(split, 0)
    cos = torch.ops.aten.cos.default(getitem)
    add = torch.ops.aten.add.Tensor(x, 1)
    return (add,)
"""
    )
    assert record.changed
    assert record.nodes_after == 3
    assert "sin" not in text


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("torch.ops.aten.copy_.default(x, y)", "writes"),
        ("torch.ops.aten.add_.Tensor(y, 1)", "writes"),
        ("torch.ops.aten.rand_like.default(x)", "random"),
        ("torch.ops.aten._assert_async.default(flag)", "check"),
        ("torch.ops.aten._assert_tensor_metadata.default(x)", "check"),
        ("torch.ops.aten.bernoulli.default(y)", "random"),
        ("torch.ops.eductor.seeds.default(2, device=torch.device('cpu'))", "random"),
    ],
)
def test_what_would_be_noticed_stays(call, why):
    text, record = dead(
        f"""
def forward(x, y, flag):
    # x: f32[2]
    # y: f32[2]
    # flag: b8[]
    kept = {call}
    add = torch.ops.aten.add.Tensor(x, 1)
    return (add,)
"""
    )
    assert not record.changed
    assert "kept = " in text
    assert any(why in r.reason for r in record.rejects)


def test_effects_of_other_packages_stay():
    with torch.library._scoped_library("eductor_dead_code", "DEF") as library:
        library.define("log(Tensor x) -> ()")
        library.define("double(Tensor x) -> Tensor")
        library.impl("log", lambda x: None, "CompositeExplicitAutograd")
        library.impl("double", lambda x: 2 * x, "CompositeExplicitAutograd")
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["val"] = torch.zeros(2)
        graph.call_function(torch.ops.eductor_dead_code.log.default, (x,))
        graph.call_function(torch.ops.eductor_dead_code.double.default, (x,)).meta["val"] = torch.zeros(2)
        graph.output((x,))
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        run_pass(eliminate_dead_code, "post_grad", module)
        left = [n.target for n in module.graph.nodes if n.op == "call_function"]
        assert left == [torch.ops.eductor_dead_code.log.default]


def scrambled(order):
    """x -> a chain and a tree of calls, put into another order."""
    module = capture(lambda x: (x.sin() + x.cos()) * x.sin().tanh() - x, [torch.randn(3)], "aten")
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    for i in order:
        if i < len(calls):
            module.graph.output_node().prepend(calls[i])
    return module


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(8)))
def test_sorting_repairs_any_order_and_settles(order):
    module = scrambled(order)
    x = torch.randn(3)
    run_pass(stable_topological_sort, "joint", module)
    assert is_sorted(module.graph)
    module.recompile()
    assert torch.equal(module(x), (x.sin() + x.cos()) * x.sin().tanh() - x)
    assert not run_pass(stable_topological_sort, "joint", module).record.changed


def test_a_sorted_graph_keeps_its_order():
    module = capture(lambda x: (x.cos(), x.sin(), x.tan()), [torch.randn(3)], "aten")
    names = [n.name for n in module.graph.nodes]
    assert [n.name for n in sorted_nodes(module.graph)] == names


def test_a_cycle_is_named():
    module = capture(lambda x: x.sin().cos(), [torch.randn(3)], "aten")
    sin, cos = (n for n in module.graph.nodes if n.op == "call_function")
    sin.args = (cos,)
    with pytest.raises(BadGraph, match=r"cycle: (sin -> cos -> sin|cos -> sin -> cos)"):
        sorted_nodes(module.graph)


def test_no_node_passes_a_write_to_what_it_reads():
    """`late` must come before its user, but not before the write that stands before it."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.zeros_like, (x,))
    user = graph.call_function(operator.add, (x, x))
    write = graph.call_function(torch.Tensor.add_, (y, 1))
    late = graph.call_function(torch.sin, (y,))
    output = graph.output((user,))
    for node in graph.nodes:
        node.meta["val"] = torch.zeros(2)
    user.args = (x, late)
    assert [n.name for n in sorted_nodes(graph)] == [n.name for n in (x, y, write, late, user, output)]


def test_random_draws_keep_their_order():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(aten.rand_like.default, (x,))
    second = graph.call_function(aten.rand_like.default, (x,))
    early = graph.call_function(aten.add.Tensor, (second, first))
    graph.output((early,))
    for node in graph.nodes:
        node.meta["val"] = torch.zeros(2)
    first.prepend(early)
    names = [n.name for n in sorted_nodes(graph)]
    assert names.index(first.name) < names.index(second.name) < names.index(early.name)


def test_ordered_effects_keep_their_order():
    with torch.library._scoped_library("eductor_log", "DEF") as library:
        library.define("say(Tensor x, str word) -> ()")
        say = torch.ops.eductor_log.say.default
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        first = graph.call_function(say, (x, "first"))
        second = graph.call_function(say, (x, "second"))
        late = graph.call_function(aten.sin.default, (x,))
        graph.output((x,))
        for node in graph.nodes:
            node.meta["val"] = torch.zeros(2)
        first.args = (late, "first")
        names = [n.name for n in sorted_nodes(graph)]
        assert names.index(late.name) < names.index(first.name) < names.index(second.name)


def test_what_a_barrier_needs_passes_it():
    """A plain pass appends a node at the end and feeds it to a call that nobody knows: no cycle."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    early = graph.call_function(torch.exp, (x,))
    opaque = graph.call_function(print, (x,))
    late, other = graph.call_function(torch.neg, (x,)), graph.call_function(torch.sin, (x,))
    output = graph.output((early,))
    for node in graph.nodes:
        node.meta["val"] = torch.zeros(2)
    opaque.args, early.args = (late,), (other,)
    order = sorted_nodes(graph)
    assert order[-1] is output
    assert order.index(late) < order.index(opaque)
    assert order.index(other) < order.index(early) < order.index(opaque)
