"""The algebra of views: a chain of them, read back from a graph and emitted again, has the same elements."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule

from eductor.graph.rewriter import Rewriter
from eductor.graph.values.evaluate import propagate
from eductor.graph.view import GraphView
from eductor.views import concatenated, plan_views, source_view, stacked
from eductor.views.index_map import IndexMap, Mode, joined

aten = torch.ops.aten


def factors(size: int) -> list[int]:
    return [n for n in range(1, size + 1) if size % n == 0]


@st.composite
def views(draw, shape):
    """One view of a tensor of this shape, as an operator and its arguments."""
    rank = len(shape)
    kinds = ["reshape", "unsqueeze", "flatten"]
    if rank:
        kinds += ["permute", "narrow", "slice", "select", "split", "unbind", "transpose", "unflatten", "squeeze"]
    kind = draw(st.sampled_from(kinds))
    dim = draw(st.integers(0, rank - 1)) if rank else 0
    size = shape[dim] if rank else 1
    if kind == "reshape":
        left, sizes = math.prod(shape), []
        while left > 1 and len(sizes) < 4:
            n = draw(st.sampled_from(factors(left)))
            sizes.append(n)
            left //= n
        return aten.reshape.default, ([*sizes, left],)
    if kind == "unflatten":
        n = draw(st.sampled_from(factors(size)))
        return aten.unflatten.int, (dim, [n, size // n])
    if kind == "narrow":
        start = draw(st.integers(0, size - 1))
        return aten.narrow.default, (dim, start, draw(st.integers(1, size - start)))
    if kind == "slice":
        start = draw(st.integers(-size, size - 1))
        return aten.slice.Tensor, (dim, start, draw(st.integers(1, size + 2)), draw(st.integers(1, 3)))
    return {
        "permute": lambda: (aten.permute.default, (draw(st.permutations(range(rank))),)),
        "transpose": lambda: (aten.transpose.int, (dim, draw(st.integers(-rank, rank - 1)))),
        "select": lambda: (aten.select.int, (dim, draw(st.integers(-size, size - 1)))),
        "split": lambda: (aten.split.Tensor, (draw(st.integers(1, size)), dim)),
        "unbind": lambda: (aten.unbind.int, (dim,)),
        "squeeze": lambda: (aten.squeeze.dim, (dim,)),
        "unsqueeze": lambda: (aten.unsqueeze.default, (draw(st.integers(-rank - 1, rank)),)),
        "flatten": lambda: (aten.flatten.using_ints, (0, -1)),
    }[kind]()


@st.composite
def chains(draw):
    """A graph that views its input several times over, and its result on a tensor of indices."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    value = torch.arange(math.prod(shape)).reshape(shape)
    graph = Graph()
    node = graph.placeholder("x")
    start = value
    for _ in range(draw(st.integers(1, 5))):
        op, args = draw(views(tuple(value.shape)))
        made = op(value, *args)
        node = graph.call_function(op, (node, *args))
        if isinstance(made, (list, tuple)):
            index = draw(st.integers(0, len(made) - 1))
            node, made = graph.call_function(operator.getitem, (node, index)), made[index]
        if not made.numel():
            break
        value = made
    graph.output(node)
    module = GraphModule({}, graph)
    propagate(module, [start])
    return module, start, module(start)


@settings(max_examples=300, deadline=None)
@given(chains())
def test_a_chain_of_views_is_read_and_emitted_again(made):
    module, start, wanted = made
    view = GraphView(module)
    (result,) = view.output.all_input_nodes
    found = source_view(view, result)
    if found is None:
        assert not wanted.numel()
        return
    again = plan_views(found.index_map)
    if again is None:
        return
    rewrite = Rewriter(view)
    new = again.emit(rewrite, before=view.output, like=result)
    view.output.args = (new,)
    module.recompile()
    got = module(start)
    assert got.shape == wanted.shape
    assert torch.equal(got, wanted)
    if again.is_view and found.index_map.source.op == "placeholder":
        assert got.untyped_storage().data_ptr() == start.untyped_storage().data_ptr()
    if again.copies:
        assert got.untyped_storage().data_ptr() != start.untyped_storage().data_ptr()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_pieces_join_to_what_they_were_cut_from(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    along = data.draw(st.integers(0, len(shape) - 1))
    dim = data.draw(st.integers(0, len(shape) - 1))
    size = data.draw(st.integers(1, shape[along]))
    graph = Graph()
    x = graph.placeholder("x")
    value = torch.arange(math.prod(shape)).reshape(shape)
    count = len(torch.split(value, size, along))
    call = graph.call_function(torch.split, (x, size, along))
    pieces = [graph.call_function(operator.getitem, (call, i)) for i in range(count)]
    graph.output(tuple(pieces))
    module = GraphModule({}, graph)
    propagate(module, [value])
    view = GraphView(module)
    for join, together in ((concatenated, torch.cat), (stacked, torch.stack)):
        try:
            wanted = together(torch.split(value, size, along), dim)
        except RuntimeError:
            continue
        found = join(view, pieces, dim, before=view.output) if count > 1 else None
        if count > 1 and (size * count == shape[along] or (dim == along and join is concatenated)):
            assert found is not None
        if found is not None:
            rewrite = Rewriter(view)
            new = found.emit(rewrite, before=view.output, like=x)
            runner = GraphModule({}, graph)
            graph.output_node().args = (new,)
            runner.recompile()
            assert torch.equal(runner(value), wanted)
            graph.output_node().args = (tuple(pieces),)


def source() -> object:
    return Graph().placeholder("x")


def test_reshape_splits_and_merges():
    x = source()
    index_map = IndexMap.whole(x, (4, 6))
    assert index_map.reshape((24,)).dims == ((Mode(0, 1, 4), Mode(1, 1, 6)),)
    assert index_map.reshape((4, 2, 3)).dims == ((Mode(0, 1, 4),), (Mode(1, 3, 2),), (Mode(1, 1, 3),))
    assert index_map.reshape((2, 12)).dims == ((Mode(0, 2, 2),), (Mode(0, 1, 2), Mode(1, 1, 6)))
    assert index_map.reshape((8, 3)).reshape((4, 6)) == index_map


def test_a_reshape_across_dimensions_reads_the_source_in_another_shape():
    index_map = IndexMap.whole(source(), (3, 4)).reshape((2, 6))
    assert index_map.sizes == (2, 6)
    assert index_map.is_whole


def test_a_slice_across_two_dimensions_is_no_box():
    flat = IndexMap.whole(source(), (3, 4)).reshape((12,))
    assert flat.narrow(0, 2, 4) is None
    assert flat.narrow(0, 4, 8).starts == (1, 0)
    assert flat.narrow(0, 5, 2).starts == (1, 1)


@pytest.mark.parametrize(
    ("starts", "sizes", "runs"),
    [
        ([0, 2, 4], [2, 2, 2], [3]),
        ([0, 2, 5], [2, 3, 1], [3]),
        ([0, 4, 2], [2, 2, 2], [2, 1]),
        ([4, 2, 0], [2, 2, 2], [1, 1, 1]),
        ([0, 0], [2, 2], [1, 1]),
        ([0, 3], [2, 2], [2]),
    ],
)
def test_which_neighbours_join(starts, sizes, runs):
    whole = IndexMap.whole(source(), (4, 8))
    maps = [whole.narrow(1, start, size) for start, size in zip(starts, sizes, strict=True)]
    assert [count for _, count in joined(maps, 1)] == runs


def test_parts_that_leave_gaps_are_no_slice():
    whole = IndexMap.whole(source(), (4, 8))
    ((index_map, _),) = joined([whole.narrow(1, 0, 2), whole.narrow(1, 3, 2)], 1)
    assert plan_views(index_map) is None
