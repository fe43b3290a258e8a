"""Graphs with bodies, with an `autograd.Function` and with operators that state a version: from disk as in eager."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as for_each_row
from torch.utils.checkpoint import checkpoint

import eductor
from eductor.cache.graphs import belongs_to_torch, is_known
from eductor.ops import versions


class Cubed(torch.autograd.Function):
    """With a gradient of its own, so that eager's would differ."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 5 * g * x**2


def branches(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x * torch.full((), 3.0), (x,))


def nested_branches(x):
    def inner(x):
        return torch.cond(x.max() > 1, lambda x: x * 2, lambda x: x * 4, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.cos(), (x,))


def counted_loop(x):
    zero = torch.zeros(())
    return while_loop(lambda i, x: i.sum() < 3, lambda i, x: (i + 1, x * 1.5 + 0.1), (zero, x.detach()))[1] + x


def running_sums(x):
    return scan(lambda c, x: (c + x.sin(), c * x), torch.zeros(4), x)[1]


def running_products(x):
    return associative_scan(lambda a, b: a * b, x.detach(), 0, combine_mode="generic") + x


def each_row(x):
    return for_each_row(lambda row: row.sin() * row.sum(), x)


def own_gradient(x):
    return Cubed.apply(x) * 2


def recomputed(x):
    return checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False)


PROGRAMS = [branches, nested_branches, counted_loop, running_sums, running_products, each_row, own_gradient, recomputed]


def results(fn):
    x = (torch.arange(20.0).reshape(5, 4) / 20 + 0.1).requires_grad_()
    y = fn(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), g


def assert_equal(got, expected):
    assert [torch.equal(x, y) for x, y in zip(got, expected, strict=True)] == [True, True]


def compiled(fn, **options):
    torch._dynamo.reset()
    return eductor.compile(fn, engine="aten", profile="exact", **options)


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_with_bodies(store, resumed, program, dynamic):
    expected = results(program)
    for _ in range(2):
        got = results(compiled(program, dynamic=dynamic))
        assert_equal(got, expected)
    assert resumed() == 1


def test_a_gradient_of_the_gradient_of_a_function(store, resumed):
    def second(fn):
        x = torch.linspace(0.1, 1, 4).requires_grad_()
        (g,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        return torch.autograd.grad(g.sum(), x)[0]

    expected = second(own_gradient)
    for _ in range(2):
        assert torch.equal(second(compiled(own_gradient)), expected)
    assert resumed() == 1


@pytest.mark.parametrize("changed", ["forward", "backward"])
def test_a_function_with_another_body_is_another_key(store, resumed, changed):
    class Other(Cubed):
        pass

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3 + 1

    def backward(ctx, g):
        return 7 * g * ctx.saved_tensors[0] ** 2

    results(compiled(lambda x: Cubed.apply(x) * 2))
    setattr(Other, changed, staticmethod(forward if changed == "forward" else backward))
    got, expected = results(compiled(lambda x: Other.apply(x) * 2)), results(lambda x: Other.apply(x) * 2)
    assert_equal(got, expected)
    assert not resumed()


@pytest.fixture
def operator(monkeypatch):
    """An operator of another library, which multiplies by a number that is not in the graph."""
    monkeypatch.setattr(versions, "_stated", {})
    factor = [3.0]
    with torch.library._scoped_library("eductor_test_versions", "FRAGMENT") as library:
        library.define("scaled(Tensor x) -> Tensor")
        library.impl("scaled", lambda x: x * factor[0], "CompositeExplicitAutograd")
        library.impl("scaled", lambda x: torch.empty_like(x), "Meta")
        library.define("filled(Tensor(a!) x) -> ()")
        library.impl("filled", lambda x: [x.fill_(factor[0]), None][1], "CompositeExplicitAutograd")
        library.impl("filled", lambda x: None, "Meta")
        yield factor


def scaled(x):
    return torch.ops.eductor_test_versions.scaled(x) + 1


def test_an_operator_that_states_a_version(store, resumed, operator):
    eductor.state_operator_version("eductor_test_versions::scaled", "1")
    for _ in range(2):
        assert compiled(scaled)(torch.ones(1)).item() == 4
    assert resumed() == 1
    eductor.state_operator_version("eductor_test_versions::scaled", "2")
    operator[0] = 5.0
    assert compiled(scaled)(torch.ones(1)).item() == 6
    assert resumed() == 1


def test_an_operator_without_a_version(store, operator):
    eductor.state_operator_version("eductor_test_versions::other", "1")
    compiled(scaled)(torch.ones(1))
    assert store.entries() == []


@pytest.mark.parametrize("writes_input", [False, True])
def test_an_operator_that_writes(store, resumed, operator, writes_input):
    """The final graph has it as an argument of a wrapper, unless it may write in place."""

    def fn(x):
        y = x if writes_input else x.clone()
        torch.ops.eductor_test_versions.filled(y[1:])
        return x + y * 2

    eductor.state_operator_version("eductor_test_versions::filled", "1")
    for _ in range(2):
        x = torch.ones(2)
        assert compiled(fn)(x).tolist() == ([3, 9] if writes_input else [3, 7])
        assert x.tolist() == ([1, 3] if writes_input else [1, 1])
    assert resumed() == 1


def test_an_operator_that_writes_and_states_no_version(store, operator):
    def fn(x):
        torch.ops.eductor_test_versions.filled(x)
        return x + 1

    assert compiled(fn)(torch.ones(2)).tolist() == [4, 4]
    assert store.entries() == []


@pytest.mark.parametrize(("name", "version"), [("scaled", "1"), ("a::b", ""), ("a::b", 1), (None, "1")])
def test_a_bad_statement_says_what_is_allowed(name, version):
    with pytest.raises(eductor.BadOption, match="state_operator_version"):
        eductor.state_operator_version(name, version)


def test_a_call_of_a_triton_kernel(store):
    """It names its kernel by a number of this process. Such a graph runs on a GPU alone."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call = torch.ops.higher_order.triton_kernel_wrapper_mutation
    node = graph.call_function(call, (), {"kernel_idx": 0, "constant_args_idx": 0, "grid": [], "kwargs": {"x": x}})
    assert not is_known(node)
    assert not belongs_to_torch(call)


def test_a_loop_that_counts_by_data(store):
    """Its number of rounds is a size that no input has."""

    def fn(x):
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x))[1]

    torch._dynamo.reset()
    assert torch.equal(compiled(fn)(torch.ones(2)), torch.full((2,), 8.0))
    assert store.entries() == []
