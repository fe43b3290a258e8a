"""eductor::laid_out: a copy with strides of its own, its gradient and its fake."""

from __future__ import annotations

import pytest
import torch

from eductor.ops.copies import laid_out


@pytest.mark.parametrize("strides", [(4, 1), (12, 1), (1, 3), (8, 2)])
def test_a_copy_with_these_strides(strides):
    x = torch.randn(3, 4)
    made = laid_out(x, strides)
    assert torch.equal(made, x)
    assert made.stride() == strides
    assert made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_it_is_as_torch_wants_operators():
    torch.library.opcheck(laid_out.default, (torch.randn(3, 4, requires_grad=True), (12, 1)))


def test_its_gradient_is_that_of_a_copy():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: laid_out(x, (12, 1)).sin(), x)
