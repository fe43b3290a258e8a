"""Results of operators are laid out as eager's kernels lay them out, whatever torch's fake mode says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import eductor

INDEX = torch.arange(12).view(3, 4)


def unpooled(x, index):
    return F.max_unpool2d(x, index, 2) * 2


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_max_unpool2d_keeps_the_memory_format_of_its_input(engine, dynamic, gradient):
    compiled = eductor.compile(unpooled, engine=engine, dynamic=dynamic, strict=True)
    for memory_format in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(2, 5, 3, 4).contiguous(memory_format=memory_format)
        index = INDEX.expand(2, 5, 3, 4).contiguous()
        first, second = (x.clone().requires_grad_(gradient) for _ in range(2))
        expected, got = unpooled(first, index), compiled(second, index)
        assert got.stride() == expected.stride()
        assert torch.equal(got, expected)
        if gradient:
            for result, source in ((expected, first), (got, second)):
                result.square().sum().backward()
                assert source.grad.stride() == source.stride()
            torch.testing.assert_close(second.grad, first.grad)
