"""Values of new nodes that are made without running their operator again are those that it would give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx import Graph

from eductor.compat import FakeTensorMode
from eductor.graph import GraphView, Rewriter, capture, value_of
from eductor.graph.values.fake_cache import FakeResults
from eductor.graph.values.meta import difference, tensor_of

aten = torch.ops.aten

CALLS = [
    (aten.rsqrt.default, ("w",), {}),
    (aten.mul.Tensor, ("w", "x"), {}),
    (aten.to.dtype, ("w", torch.float64), {}),
    (aten.sum.dim_IntList, ("w", [1]), {"dtype": torch.float64}),
    (aten.stack.default, (["w", "x", "w"], 1), {}),
    (aten.mm.default, ("w", "t"), {}),
    (aten.gt.Scalar, ("w", 0.5), {}),
    (aten.clone.default, ("t",), {}),
    (aten.transpose.int, ("w", 0, 1), {}),
    (aten.reshape.default, ("w", [3, 2]), {}),
]


def editing(grad: bool = True):
    w, x = torch.randn(2, 3, requires_grad=grad), torch.randn(2, 3)
    module = capture(lambda w, x: (w + x).t(), [w, x], "torch")
    view = GraphView(module)
    inputs = module.graph.find_nodes(op="placeholder")
    nodes = {"w": inputs[0], "x": inputs[1], "t": module.graph.output_node().all_input_nodes[0]}
    return view, Rewriter(view), nodes


def named(given, nodes):
    if isinstance(given, list):
        return [named(g, nodes) for g in given]
    return nodes.get(given, given) if isinstance(given, str) else given


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS, ids=[str(op) for op, *_ in CALLS])
def test_the_second_value_is_like_the_first(op, args, kwargs, grad):
    view, rewrite, nodes = editing(grad)
    args = [named(a, nodes) for a in args]
    first, second = (rewrite.insert(op, *args, before=view.output, **kwargs) for _ in range(2))
    a, b = tensor_of(first), tensor_of(second)
    assert a is not b
    assert difference(a, b) is None
    assert (a.requires_grad, a.is_leaf) == (b.requires_grad, b.is_leaf)
    operands = [value_of(n).untyped_storage() for n in first.all_input_nodes]
    assert [a.untyped_storage() is s for s in operands] == [b.untyped_storage() is s for s in operands]


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3)


@given(
    st.sampled_from([aten.tanh.default, aten.relu.default, aten.add.Tensor, aten.mul.Tensor]),
    SHAPES,
    st.lists(st.booleans(), max_size=3),
    st.permutations(range(3)),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    st.tuples(st.booleans(), st.booleans()),
)
def test_what_is_told_by_the_form_alone_is_what_the_operator_gives(op, shape, ones, order, dtype, followed):
    """Operands of any shape that spreads over the first, in any layout, of which some are followed."""
    mode = FakeTensorMode()
    narrow = [1 if one else size for one, size in zip(ones, shape[len(shape) - len(ones) :], strict=False)]
    shapes = [shape, narrow] if op in (aten.add.Tensor, aten.mul.Tensor) else [shape]
    graph = Graph()
    operands = []
    for i, (each, is_followed) in enumerate(zip(shapes, followed, strict=False)):
        turned = [d for d in order if d < len(each)]
        value = torch.empty([each[d] for d in turned], dtype=dtype).permute([turned.index(d) for d in range(len(each))])
        operands.append(graph.placeholder(f"x{i}"))
        with mode:
            operands[-1].meta["val"] = mode.from_tensor(value).requires_grad_(is_followed and dtype.is_floating_point)
    node = graph.call_function(op, tuple(operands))

    def run():
        with mode:
            return op(*(n.meta["val"] for n in operands))

    made, known = FakeResults().value(node, mode, run), run()
    assert difference(made, known) is None
    assert (made.requires_grad, made.is_leaf) == (known.requires_grad, known.is_leaf)


def test_a_call_that_has_keywords_alone_is_evaluated():
    view, rewrite, nodes = editing()
    made = rewrite.insert(aten.stack.default, before=view.output, tensors=[nodes["w"], nodes["w"]])
    assert tensor_of(made).requires_grad


def test_a_remembered_value_may_be_written():
    view, rewrite, nodes = editing()
    for _ in range(2):
        made = rewrite.insert(aten.rsqrt.default, nodes["w"], before=view.output)
    written = rewrite.insert(aten.add_.Tensor, made, nodes["x"], before=view.output)
    assert tensor_of(written).requires_grad


def test_a_value_under_no_grad_is_not_followed():
    view, rewrite, nodes = editing()
    with torch.no_grad():
        silent = rewrite.insert(aten.rsqrt.default, nodes["w"], before=view.output)
    followed = [rewrite.insert(aten.rsqrt.default, nodes["w"], before=view.output) for _ in range(2)]
    assert not tensor_of(silent).requires_grad
    assert all(tensor_of(node).requires_grad for node in followed)


def test_a_reading_lasts_until_the_call_is_edited():
    view, rewrite, nodes = editing()
    add = next(view.find(aten.add))
    first = view.bind(add)
    assert view.bind(add) is first
    rewrite.update(add, args=(nodes["x"], nodes["x"]))
    assert view.bind(add)["self"] is nodes["x"]
    twice = rewrite.insert(aten.mul.Tensor, nodes["w"], 2, before=add)
    rewrite.replace(nodes["t"], aten.mul.Tensor, add, add)
    rewrite.replace(add, twice)
    assert all(view.bind(user)["self"] is twice for user in twice.users)


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2), (2, 0, 3), (5,)])
@pytest.mark.parametrize("followed", [False, True])
def test_stacks_of_alike_tensors_are_known_without_running(shape, followed):
    mode = FakeTensorMode()
    with mode:
        tensors = [torch.empty(shape, requires_grad=followed) * 1 for _ in range(3)]
    graph = Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(3)]
    for node, tensor in zip(nodes, tensors, strict=True):
        node.meta["val"] = tensor
    for dim in range(-len(shape) - 1, len(shape) + 1):
        with mode:
            expected = torch.stack(tensors, dim)
        for args, kwargs in (((nodes, dim), {}), ((nodes,), {"dim": dim})):
            call = graph.call_function(torch.ops.aten.stack.default, args, kwargs)
            got = FakeResults().value(call, mode, lambda: pytest.fail("it was run"))
            assert difference(got, expected) is None
            assert got.requires_grad == expected.requires_grad


def test_stacks_of_other_tensors_are_run():
    mode = FakeTensorMode()
    with mode:
        rows, columns = torch.empty(3, 4), torch.empty(4, 3).t()
    graph = Graph()
    nodes = [graph.placeholder("x"), graph.placeholder("y")]
    for pair in ((rows, columns), (columns, columns)):
        for node, tensor in zip(nodes, pair, strict=True):
            node.meta["val"] = tensor
        call = graph.call_function(torch.ops.aten.stack.default, (nodes,))
        ran = []
        FakeResults().value(call, mode, lambda pair=pair, ran=ran: ran.append(1) or torch.stack(pair))
        assert ran
