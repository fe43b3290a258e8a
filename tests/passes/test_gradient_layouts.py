"""Gradients lie as their parameters do, so that nobody copies them one by one."""

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


def test_gradients_of_stacked_weights_lie_as_the_weights():
    seen = Last()
    compiled = eductor.compile(batched, engine="aten", instruments=[seen])
    given = inputs()
    compiled(*given).square().sum().backward()
    assert seen.strides[1:] == [(4, 1)] * 3
    got = [w.grad.clone() for w in given[1:]]
    again = inputs()
    batched(*again).square().sum().backward()
    torch.testing.assert_close(got, [w.grad for w in again[1:]])


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
    run_pass(lay_out_gradients, "joint", module, facts={"gradients": (0,)})
    assert products(module) == before


def test_a_transposition_that_others_read_stays():
    def fn(x, y):
        turned = torch.bmm(x, y).permute(0, 2, 1)
        return turned.sum(), turned[0]

    module = graph_of(fn, torch.randn(2, 3, 4), torch.randn(2, 4, 3))
    before = products(module)
    run_pass(lay_out_gradients, "joint", module, facts={"gradients": (0,)})
    assert products(module) == before


class Backward(Instrument):
    """The backward as it is run."""

    def before_stage(self, run) -> None:
        if run.name == "engine":
            self.graph = run.module.graph


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_the_gradient_of_a_key_is_not_copied_to_be_transposed_twice(engine, dynamic):
    seen, generator = Backward(), torch.Generator().manual_seed(0)
    given = [torch.randn(2, 3, n, 8, generator=generator, requires_grad=True) for n in (18, 24, 24)]
    out = eductor.compile(attention, engine=engine, dynamic=dynamic, instruments=[seen])(*given)
    tangent = torch.randn(out.shape, generator=generator)
    got = torch.autograd.grad(out, given, tangent)
    assert [g.stride() for g in got] == [x.stride() for x in given]
    torch.testing.assert_close(got, torch.autograd.grad(attention(*given), given, tangent))
    copies = [n for n in seen.graph.nodes if n.target is aten.clone.default]
    assert len(copies) == 3  # the kernel for CPUs gives each of them with the heads inside


def test_a_transposed_copy_that_others_read_stays():
    def fn(x):
        copy = x.exp().transpose(-1, -2).clone(memory_format=torch.contiguous_format)
        return copy.sin(), copy.view(2, 3, 4, 5).transpose(-1, -2)

    module = graph_of(fn, torch.randn(6, 5, 4))
    before = str(module.graph)
    run_pass(drop_transposed_gradient_copies, "joint", module, facts={"gradients": (0,)})
    assert str(module.graph) == before


def test_a_transposed_copy_of_another_result_stays():
    def fn(x):
        y = x.exp()
        return y, y.transpose(-1, -2).clone(memory_format=torch.contiguous_format).view(2, 3, 4, 5).transpose(-1, -2)

    module = graph_of(fn, torch.randn(6, 5, 4))
    before = str(module.graph)
    run_pass(drop_transposed_gradient_copies, "joint", module, facts={"gradients": (0,)})
    assert str(module.graph) == before
