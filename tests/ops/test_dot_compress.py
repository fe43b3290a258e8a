"""eductor::dot_compress: the compressed dot interaction, its gradients, its fake, and its kernel."""

from __future__ import annotations

import pytest
import torch

import eductor
from ops.interpreting import needs_triton, run_interpreted

dot_compress = torch.ops.eductor.dot_compress


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 7, 6), (0, 7, 6), (5, 7, 0), (1, 1, 1)])
def test_it_is_the_product_of_all_pairs_with_the_weight(shape, dtype):
    weight = torch.randn(3, shape[1], dtype=dtype)
    for x in (torch.randn(shape, dtype=dtype), torch.randn(shape[0], shape[2], shape[1], dtype=dtype).mT):
        wide = x.double() @ x.double().mT @ weight.double().t()
        got = dot_compress(x, weight)
        assert got.is_contiguous()
        close = {torch.float64: 1e-12, torch.float32: 1e-4}.get(dtype, 5e-2)
        torch.testing.assert_close(got, wide.to(dtype), rtol=close, atol=close * 10)


def operands(dtype=torch.float64):
    return [torch.randn(size, dtype=dtype, requires_grad=True) for size in ((2, 5, 4), (3, 5))]


def test_gradients_and_theirs():
    assert torch.autograd.gradcheck(dot_compress, operands())
    assert torch.autograd.gradgradcheck(dot_compress, operands())


def test_it_is_a_good_citizen():
    x, weight = operands(torch.float32)
    for given in (x, x.mT.contiguous().mT, x[:0]):
        torch.library.opcheck(dot_compress.default, (given, weight))


def test_wrong_operands_are_named():
    x, weight = operands(torch.float32)
    with pytest.raises(ValueError, match=r"their shapes are \[2, 5, 4\], \[5, 3\]"):
        dot_compress(x, weight.t())
    with pytest.raises(ValueError, match="one dtype"):
        dot_compress(x, weight.double())


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_engines_run_it(engine):
    def program(x, weight):
        return dot_compress(x * 2, weight).flatten(1).sin()

    inputs = operands(torch.float32)
    compiled = eductor.compile(program, engine=engine)
    torch.testing.assert_close(compiled(*inputs), program(*inputs))
    grads = [torch.autograd.grad(fn(*inputs).sum(), inputs) for fn in (program, compiled)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@needs_triton
def test_the_kernel_in_the_interpreter():
    run_interpreted("dot_compress")
