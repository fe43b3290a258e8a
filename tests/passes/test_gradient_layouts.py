"""Gradients of parameters lie as these do, so that nobody copies them one by one; others lie as in eager."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule

import eductor
from eductor.graph.capture import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.joint.drop_transposed_gradient_copies import drop_transposed_gradient_copies
from eductor.passes.joint.lay_out_gradients import lay_out_gradients
from eductor.pipeline.instruments import Instrument

aten = torch.ops.aten


class Last(Instrument):
    """The joint graph as it is parted."""

    def before_stage(self, run) -> None:
        if run.name == "partition":
            self.strides = [n.meta["val"].stride() for n in run.module.graph.output_node().args[0]]


def batched(x, *weights):
    return torch.bmm(x, torch.stack(weights).mT)


def inputs():
    torch.manual_seed(0)
    return torch.randn(3, 16, 4), *(torch.randn(5, 4, requires_grad=True) for _ in range(3))


class Held(torch.nn.Module):
    """A function whose last arguments are parameters."""

    def __init__(self, fn, *weights):
        super().__init__()
        self.fn = fn
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(w.detach().clone()) for w in weights)

    def forward(self, *given):
        return self.fn(*given, *self.weights)


def test_gradients_of_stacked_weights_lie_as_the_weights():
    seen = Last()
    x, *weights = inputs()
    module = Held(batched, *weights)
    eductor.compile(module, engine="aten", instruments=[seen])(x).square().sum().backward()
    assert seen.strides[1:] == [(4, 1)] * 3
    again = inputs()
    batched(*again).square().sum().backward()
    torch.testing.assert_close([w.grad for w in module.weights], [w.grad for w in again[1:]])


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_gradients_of_tensors_that_are_no_parameters_lie_as_in_eager(engine):
    x, *weights = inputs()
    out = eductor.compile(batched, engine=engine)(x, *weights)
    got = torch.autograd.grad(out, weights, out.detach())
    wanted = torch.autograd.grad(batched(x, *weights), weights, out.detach())
    assert [g.stride() for g in got] == [g.stride() for g in wanted]
    torch.testing.assert_close(got, wanted)


def test_exact_keeps_eagers_product():
    seen = Last()
    given = inputs()
    eductor.compile(batched, profile="exact", instruments=[seen])(*given).square().sum().backward()
    again = inputs()
    batched(*again).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(given[1:], again[1:], strict=True))


def graph_of(fn, *given) -> GraphModule:
    return capture(fn, given, "aten")


def products(module: GraphModule) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if n.target in (aten.bmm.default, aten.permute.default)]


def test_a_product_that_is_used_as_it_is_stays():
    def fn(x, y):
        product = torch.bmm(x, y)
        return product.sum(), product.permute(0, 2, 1)

    module = graph_of(fn, torch.randn(2, 3, 4), torch.randn(2, 4, 3))
    before = products(module)
    run_pass(lay_out_gradients, "joint", module, facts={"gradients": (0,), "parameters": {0}})
    assert products(module) == before


def test_a_transposition_that_others_read_stays():
    def fn(x, y):
        turned = torch.bmm(x, y).permute(0, 2, 1)
        return turned.sum(), turned[0]

    module = graph_of(fn, torch.randn(2, 3, 4), torch.randn(2, 4, 3))
    before = products(module)
    run_pass(lay_out_gradients, "joint", module, facts={"gradients": (0,), "parameters": {0}})
    assert products(module) == before


class Backward(Instrument):
    """The backward as it is run."""

    def before_stage(self, run) -> None:
        if run.name == "engine":
            self.graph = run.module.graph


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v


def queries_last(q, k, v):
    return (v.transpose(-2, -1) @ torch.softmax(k @ q.transpose(-2, -1) / 4, -2)).transpose(-2, -1)


def given_to_attention():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, n, 8, generator=generator, requires_grad=True) for n in (18, 24, 24)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_the_gradient_of_a_key_is_not_copied_to_be_transposed_twice(engine, dynamic):
    seen, given = Backward(), given_to_attention()
    module = Held(attention, *given)
    out = eductor.compile(module, engine=engine, dynamic=dynamic, instruments=[seen])()
    tangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    got = torch.autograd.grad(out, [*module.weights], tangent)
    assert [g.stride() for g in got] == [x.stride() for x in given]
    torch.testing.assert_close(got, torch.autograd.grad(attention(*given), given, tangent))
    copies = [n for n in seen.graph.nodes if n.target is aten.clone.default]
    assert len(copies) == 3  # the kernel for CPUs gives each of them with the heads inside


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [attention, queries_last])
@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_a_fused_attention_has_gradients_with_eagers_strides(engine, fn, dynamic):
    given, recorder = given_to_attention(), eductor.Recorder()
    out = eductor.compile(fn, engine=engine, dynamic=dynamic, instruments=[recorder])(*given)
    tangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    got = torch.autograd.grad(out, given, tangent)
    wanted = torch.autograd.grad(fn(*given), given, tangent)
    assert [g.stride() for g in got] == [g.stride() for g in wanted]
    torch.testing.assert_close(got, wanted)
    assert "joint/fuse_attention" in recorder.changed()


def test_a_transposed_copy_that_others_read_stays():
    def fn(x):
        copy = x.exp().transpose(-1, -2).clone(memory_format=torch.contiguous_format)
        return copy.sin(), copy.view(2, 3, 4, 5).transpose(-1, -2)

    module = graph_of(fn, torch.randn(6, 5, 4))
    before = str(module.graph)
    run_pass(drop_transposed_gradient_copies, "joint", module, facts={"gradients": (0,), "parameters": {0}})
    assert str(module.graph) == before


def test_a_transposed_copy_of_another_result_stays():
    def fn(x):
        y = x.exp()
        return y, y.transpose(-1, -2).clone(memory_format=torch.contiguous_format).view(2, 3, 4, 5).transpose(-1, -2)

    module = graph_of(fn, torch.randn(6, 5, 4))
    before = str(module.graph)
    run_pass(drop_transposed_gradient_copies, "joint", module, facts={"gradients": (0,), "parameters": {0}})
    assert str(module.graph) == before


def unscaled(q, k, v):
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(-2, -1)), -1), v)


def scaled(q, k, v):
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(-2, -1)) / 4, -1), v)


@pytest.mark.parametrize("held", [0, 2, 3])
@pytest.mark.parametrize("fn", [unscaled, scaled])
def test_attention_of_batched_products_is_fused_in_training(fn, held):
    """Whether or not its operands are parameters, whose gradients are laid out as they are."""
    generator, recorder = torch.Generator().manual_seed(0), eductor.Recorder()
    given = [torch.randn(3, n, 8, generator=generator, requires_grad=True) for n in (18, 24, 24)]
    module = Held(fn, *given[3 - held :])
    eductor.compile(module, engine="aten", instruments=[recorder])(*given[: 3 - held]).square().sum().backward()
    assert "joint/fuse_attention" in recorder.changed()
    got = [x.grad for x in (*given[: 3 - held], *module.weights)]
    again = [x.detach().clone().requires_grad_() for x in given]
    fn(*again).square().sum().backward()
    torch.testing.assert_close(got, [x.grad for x in again])
