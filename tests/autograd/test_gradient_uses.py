"""What autograd adds up outside of a graph is added in eager's order: graphs hand over gradients use by use."""

from __future__ import annotations

import functools

import pytest
import torch

import eductor
from eductor.autograd.gradient_uses import gradients_by_use

exact = functools.partial(eductor.compile, profile="exact")


def gradients(fn, *inputs, together=lambda out, *leaves: out.sum()):
    leaves = [x.clone().requires_grad_() for x in inputs]
    together(fn(*leaves), *leaves).backward()
    return [x.grad for x in leaves]


def same(expected, got):
    return all(map(torch.equal, expected, got))


def matrices(count, size=16):
    torch.manual_seed(0)
    return [torch.randn(size, size) for _ in range(count)]


def parted(x, w):
    h = x.sin()
    torch._dynamo.graph_break()
    a, b = h @ w, (h * 3) @ w
    torch._dynamo.graph_break()
    return a * b.cos() + h


def used_three_times_in_the_first_graph(x, w):
    h = x.sin()
    a = h @ w + h * 3 + h.exp()
    torch._dynamo.graph_break()
    return a.cos() * h


@pytest.mark.parametrize("program", [parted, used_three_times_in_the_first_graph], ids=lambda p: p.__name__)
@pytest.mark.parametrize("dynamic", [False, True])
def test_uses_that_a_graph_break_parts(program, dynamic):
    inputs = matrices(2)
    assert same(gradients(program, *inputs), gradients(exact(program, dynamic=dynamic), *inputs))


def test_a_parameter_that_is_used_outside_of_the_graph_as_well():
    def program(x, w):
        return (x @ w).tanh() @ w.t()

    def penalized(out, x, w):
        return out.square().sum() + (w.exp() * 0.1).sum()

    inputs = matrices(2)
    expected = gradients(program, *inputs, together=penalized)
    assert same(expected, gradients(exact(program), *inputs, together=penalized))


def test_an_input_behind_a_view_that_a_pass_could_take_away():
    """The parts of its gradient are summed before the view is left, and then added to the one from outside."""

    def program(x, w):
        same = x.view(x.shape)
        return (same @ w).sin() + (same * 3).cos()

    def used_outside(out, x, w):
        return (out * x.exp()).sum()

    inputs = matrices(2)
    expected = gradients(program, *inputs, together=used_outside)
    assert same(expected, gradients(exact(program), *inputs, together=used_outside))


def test_an_input_that_is_twice_an_operand():
    (x,) = matrices(1)
    assert same(gradients(lambda x: x + x, x), gradients(exact(lambda x: x + x), x))


def test_a_backward_that_runs_the_graph_again():
    def second(fn, *inputs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        first = torch.autograd.grad(fn(*leaves).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    inputs = matrices(2, 4)
    for expected, got in zip(second(parted, *inputs), second(exact(parted), *inputs), strict=True):
        torch.testing.assert_close(expected, got)


def test_a_gradient_in_another_layout_is_summed_as_in_eager():
    torch.manual_seed(0)
    x, bias, weights = torch.randn(2, 8, 33), torch.randn(8, 1), torch.randn(2, 33, 8)

    def program(x, bias):
        return (x * 2 + bias).transpose(1, 2)

    def weighted(out, *_):
        return (out * weights).sum()

    expected = gradients(program, x, bias, together=weighted)
    assert same(expected, gradients(exact(program), x, bias, together=weighted))


def test_parts_come_in_the_order_of_autograd():
    x, w = (m.requires_grad_() for m in matrices(2))
    result = x @ w + x.sin() + x
    parts, (alone,) = gradients_by_use([result, x], [x, w], [torch.ones_like(x), torch.full_like(x, 7)])
    assert [len(parts), parts[0].unique().tolist(), parts[1].unique().tolist()] == [4, [7], [1]]
    assert torch.equal(parts[2], x.cos())
    assert torch.equal(parts[3], torch.ones_like(x) @ w.t())
    assert torch.equal(alone, x.t() @ torch.ones_like(x))
