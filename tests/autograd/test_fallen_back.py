"""Programs that once raised, or fell back to the whole graph in eager, though they need not."""

from __future__ import annotations

import pytest
import torch

import eductor

ENGINES = [{"engine": "aten"}, {"profile": "exact"}, {"engine": "inductor"}]


def outcome(fn, *given):
    """The outputs and the gradients of a call with copies of its inputs."""
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in given]
    y = fn(*inputs)
    starts = [x for x in inputs if x.requires_grad]
    gradients = torch.autograd.grad(y, starts, torch.ones_like(y)) if y.requires_grad else ()
    return y.detach(), gradients


@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize(
    "program",
    [lambda x: x * 2j, lambda x: (1 - 2j) * x, lambda x: x / 2j, lambda x: x.sum() * 2j, lambda x: x**2 * 1j + 3j],
    ids=["times", "from the left", "by", "without dimensions", "powers"],
)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_beside_differentiable_tensors(program, dtype, options):
    torch.manual_seed(0)
    x = torch.randn(3, dtype=dtype, requires_grad=True)
    got = outcome(eductor.compile(program, strict=True, **options), x)
    torch.testing.assert_close(got, outcome(program, x))


@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize("trains", [False, True])
def test_a_layout_that_fake_tensors_do_not_have_falls_back(options, trains):
    def program(x):
        return x.to_mkldnn().to_dense() + 1

    x = torch.randn(3, 4, requires_grad=trains)
    with pytest.warns(eductor.EductorWarning, match="layout torch._mkldnn"):
        got = outcome(eductor.compile(program, **options), x)
    torch.testing.assert_close(got, outcome(program, x))
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"layout torch\._mkldnn"):
        eductor.compile(program, strict=True, **options)(x)
