"""eductor::lce: a product for each sample, its gradients, its fake, and its kernel."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor.graph import capture
from ops.interpreting import needs_triton, run_interpreted

lce = torch.ops.eductor.lce


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("shape", [(7, 6), (5, 7, 6), (2, 5, 7, 6), (0, 7, 6), (5, 7, 0), (1, 7, 1)])
def test_it_is_a_product_for_each_sample(shape, activation, dtype):
    weight, bias = torch.randn(3, 7, dtype=dtype), torch.randn(3, dtype=dtype)
    for x in (torch.randn(shape, dtype=dtype), torch.randn(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT):
        for b in (None, bias):
            wide = torch.einsum("mn,...nd->...md", weight.double(), x.double())
            wide = wide if b is None else wide + b.double().unsqueeze(-1)
            got = lce(weight, x, b, activation)
            expected = (wide.relu() if activation == "relu" else wide).to(dtype)
            assert got.is_contiguous()
            close = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 5e-2)
            torch.testing.assert_close(got, expected, rtol=close, atol=close)


def operands(dtype=torch.float64, requires_grad=True, shape=(5, 7, 6)):
    sizes = ((3, 7), shape, (3,))
    return [torch.randn(size, dtype=dtype, requires_grad=requires_grad) for size in sizes]


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_gradients_and_theirs(activation):
    for shape in ((7, 6), (2, 7, 6), (2, 2, 7, 3)):
        weight, x, bias = operands(shape=shape)
        assert torch.autograd.gradcheck(lce, (weight, x, bias, activation))
        assert torch.autograd.gradgradcheck(lce, (weight, x, bias, activation))


def test_only_what_is_asked_for_has_a_gradient():
    weight, x, bias = operands(requires_grad=False)
    for asked in (weight, x, bias):
        asked.requires_grad_()
        (grad,) = torch.autograd.grad(lce(weight, x, bias, "relu").sum(), [asked])
        assert grad.shape == asked.shape
        asked.requires_grad_(False)
    assert not lce(weight, x, bias, "none").requires_grad


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_it_is_a_good_citizen(activation):
    weight, x, bias = operands(torch.float32)
    for given in (x, x.mT.contiguous().mT, x[:0], x[0]):
        for b in (bias, None):
            torch.library.opcheck(lce.default, (weight, given, b, activation))


def test_the_fake_keeps_symbolic_sizes():
    module = capture(
        lambda w, x: lce(w, x, None, "none").sum(1), [torch.randn(3, 7), torch.randn(5, 7, 6)], dynamic=True
    )
    (node,) = [n for n in module.graph.nodes if n.target is lce.default or n.target is lce]
    assert str(node.meta["example_value"].shape[0]) == str(node.args[1].meta["example_value"].shape[0])
    weight, x = torch.randn(2, 4), torch.randn(3, 4, 5)
    torch.testing.assert_close(module(weight, x), (weight @ x).sum(1))


def test_wrong_operands_are_named():
    weight, x, bias = operands(torch.float32)
    for given, message in (
        ((weight, x, bias, "tanh"), "must be one of none, relu"),
        ((weight[0], x, bias, "none"), r"takes weight\[M, N\]"),
        ((weight.t(), x, bias, "none"), r"their shapes are \[7, 3\], \[5, 7, 6\], \[3\]"),
        ((weight, x, bias.double(), "none"), "one dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            lce(*given)


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_engines_run_it(engine):
    def program(weight, x, bias):
        return lce(weight, x * 2, bias, "relu").flatten(1).sin()

    inputs = operands(torch.float32)
    compiled = eductor.compile(program, engine=engine)
    torch.testing.assert_close(compiled(*inputs), program(*inputs))
    grads = [torch.autograd.grad(fn(*inputs).sum(), inputs) for fn in (program, compiled)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@needs_triton
def test_the_kernel_in_the_interpreter():
    run_interpreted("lce")
