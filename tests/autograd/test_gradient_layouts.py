"""Gradients lie as their parameters do, so that nobody copies them one by one."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

import eductor
from eductor.autograd.layouts import lay_out_gradients
from eductor.graph.capture import capture
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
    lay_out_gradients(module, [0])
    assert products(module) == before


def test_a_transposition_that_others_read_stays():
    def fn(x, y):
        turned = torch.bmm(x, y).permute(0, 2, 1)
        return turned.sum(), turned[0]

    module = graph_of(fn, torch.randn(2, 3, 4), torch.randn(2, 4, 3))
    before = products(module)
    lay_out_gradients(module, [0])
    assert products(module) == before
