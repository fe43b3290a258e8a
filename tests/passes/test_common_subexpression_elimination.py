"""common_subexpression_elimination: what is computed once, and what stays two."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor.graph import capture, from_python, to_python
from eductor.graph.values.evaluate import propagate
from eductor.graph.values.meta import AHEAD
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.common_subexpression_elimination import common_subexpression_elimination
from eductor.pipeline import f32
from eductor.testing import assert_pass, assert_refused

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda x: x.sin() + x.sin(), lambda x: (lambda s: s + s)(x.sin())),
        (lambda x: x.sum(0) * x.sum(0), lambda x: (lambda s: s * s)(x.sum(0))),
        (lambda x: aten.sum(x, [0]) * aten.sum(x, [0], False), lambda x: (lambda s: s * s)(aten.sum(x, [0]))),
        (lambda x: x.t().sin() + x.t().sin(), lambda x: (lambda s: s + s)(x.t().sin())),
        (lambda x: x.max(0)[0] + x.max(0)[0], lambda x: (lambda s: s + s)(x.max(0)[0])),
        (lambda x: x.sin().cos() + x.sin().cos(), lambda x: (lambda s: s + s)(x.sin().cos())),
        (lambda x: (x.sin(), x.sin() + 1), lambda x: (lambda s: (s, s + 1))(x.sin())),
    ],
)
def test_goes(before, after):
    assert_pass(common_subexpression_elimination, before, after, [f32(3, 3)])


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x: (x.sin(), x.sin()), "a separate output"),
        (lambda x: (x[1:], x[1:]), "a separate output"),
        (lambda x: (x.sin(), x.sin().view(-1)), "its aliases would change"),
        (lambda x: torch.rand_like(x) + torch.rand_like(x), "draws"),
        (lambda x: torch.bernoulli(x) + torch.bernoulli(x), "draws"),
    ],
)
def test_stays(program, because):
    assert_refused(common_subexpression_elimination, program, [f32(3, 3)], because)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x + 1) * (x + 1.0),
        lambda x: (x + 1) * (x + True),
        lambda x: (x * 0.0) + (x * -0.0),
        lambda x: x.sum(0) + x.sum(1),
        lambda x: torch.add(x, x, alpha=2) * torch.add(x, x),
        lambda x: x[1:] * x[:-1],
        lambda x: x.max(0)[0] + x.max(0)[1],
    ],
)
def test_is_not_the_same(program):
    """Whatever is merged below it, the two operands of the last call stay two."""
    module = capture(program, [torch.randn(3, 3)], "aten")
    run_pass(common_subexpression_elimination, "post_grad", module)
    assert len(set(module.graph.output_node().args[0].args[:2])) == 2


def test_a_write_between_keeps_them_apart():
    module = from_python(
        """
def forward(x):
    # x: f32[3]
    a = torch.ops.aten.sin.default(x)
    b = torch.ops.aten.cos.default(x)
    write = torch.ops.aten.copy_.default(x, b)
    c = torch.ops.aten.sin.default(x)
    d = torch.ops.aten.sin.default(x)
    e = torch.ops.aten.add.Tensor(c, d)
    return (a, e)
"""
    )
    propagate(module)
    eductor.post_grad_passes(module, True, options={"pipeline": "post_grad(common_subexpression_elimination)"})
    text = to_python(module.graph)
    assert text.count("sin.default") == 2
    x = torch.randn(3)
    a, e = module(x.clone())
    assert torch.equal(a, x.sin())
    assert torch.equal(e, 2 * x.cos().sin())


def test_what_is_made_ahead_is_made_again_later():
    module = capture(lambda x: x.sin() + x.sin(), [torch.randn(3)], "aten")
    next(n for n in module.graph.nodes if n.target is aten.sin.default).meta[AHEAD] = True
    run = run_pass(common_subexpression_elimination, "post_grad", module)
    assert not run.record.changed


def test_memory_to_be_filled_stays_apart_and_what_is_read_of_it_does_not():
    def program(x, i):
        sums = torch.zeros(4).index_add(0, i, x), torch.zeros(4).index_add(0, i, x + 1)
        return sums[0] + sums[1] + (torch.zeros(4) * 2) + (torch.zeros(4) * 2)

    module = capture(program, [torch.randn(3), torch.tensor([0, 1, 1])], "aten")
    run_pass(common_subexpression_elimination, "post_grad", module)
    text = to_python(module.graph)
    assert text.count("mul.Tensor") == 1
    assert text.count("zeros.default") >= 3


def test_sizes_may_be_symbols():
    def program(x, y):
        return x.view(-1, y.shape[0]).sin() + x.view(-1, y.shape[0]).sin()

    module = capture(program, [torch.randn(6, 4), torch.randn(8)], "aten", dynamic=True)
    env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    guards = len(env.guards)
    run_pass(common_subexpression_elimination, "post_grad", module)
    assert to_python(module.graph).count("sin.default") == 1
    assert len(env.guards) == guards
    x, y = torch.randn(4, 4), torch.randn(2)
    assert torch.equal(module(x, y), 2 * x.view(-1, 2).sin())


def test_what_is_saved_for_the_backward_is_not_what_the_caller_holds():
    """The caller writes an output between forward and backward."""

    def program(x):
        return x.exp().detach(), x.exp()

    call = eductor.compile(program, engine="aten", strict=True)
    x = torch.randn(3, requires_grad=True)
    first, second = call(x)
    first.zero_()
    second.sum().backward()
    assert torch.equal(x.grad, x.detach().exp())
