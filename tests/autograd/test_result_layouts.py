"""Results and gradients keep eager's strides where a write in place, functionalized, would be a contiguous value."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

import eductor

MASK = torch.randn(2, 4, 4, 6, generator=torch.Generator().manual_seed(0)) > 0
INDEX = torch.tensor([0, 1])
WRITES = {
    "masked_fill_": lambda y: y.masked_fill_(MASK, 0),
    "masked_scatter_": lambda y: y.masked_scatter_(MASK, torch.ones(2, 4, 4, 6)),
    "cumsum_": lambda y: y.cumsum_(1),
    "tril_": lambda y: y.tril_(),
    "index_add_": lambda y: y.index_add_(1, INDEX, torch.ones(2, 2, 4, 6)),
    "index_copy_": lambda y: y.index_copy_(1, INDEX, torch.ones(2, 2, 4, 6)),
    "renorm_": lambda y: y.renorm_(2, 0, 1.0),
    "a write, and what is computed from it": lambda y: y.masked_fill_(MASK, 0).sin(),
    "maximum, whose gradient is written": lambda y: torch.maximum(y, torch.zeros(4, 4, 6)),
}


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def all_writes(xs):
    return [write(x * 1) for write, x in zip(WRITES.values(), xs, strict=True)]


WAYS = ({"engine": "aten"}, {"engine": "aten", "profile": "exact"}, {"engine": "aten", "dynamic": True})
CASES = [(laid_out, way) for laid_out in (channels_last, transposed) for way in WAYS]


@pytest.mark.parametrize(("laid_out", "options"), [*CASES, (transposed, {"engine": "inductor"})])
def test_results_and_gradients_keep_their_strides(laid_out, options):
    seen = []
    for call in (all_writes, eductor.compile(all_writes, strict=True, **options)):
        torch.manual_seed(0)
        xs = [laid_out(torch.randn(2, 4, 4, 6)).requires_grad_() for _ in WRITES]
        results = call(xs)
        if "dynamic" in options:  # the gradients that a transposed result gets are contiguous there
            seen.append([*results])
            continue
        gradients = torch.autograd.grad(results, xs, [torch.ones_like(r) for r in results])
        seen.append([*results, *gradients])
    for name, expected, got in zip([*WRITES] * 2, *seen, strict=False):
        assert got.stride() == expected.stride(), name
        torch.testing.assert_close(got, expected, msg=name)


def test_a_result_that_is_returned_twice_stays_one_tensor():
    def program(x):
        y = x * 1
        y.masked_fill_(MASK, 0)
        return y, y

    x = transposed(torch.randn(2, 4, 4, 6))
    first, second = eductor.compile(program, engine="aten", strict=True)(x)
    assert first is second
    assert first.stride() == x.stride()


EMPTY = {
    "a view of what is computed": lambda x: (x - 1).view(0, 2, 12),
    "a reshape": lambda x: torch.relu(x).reshape(6, 0, 4),
    "a group norm": lambda x: torch.native_group_norm(x, None, None, 0, 4, 6, 2, 1e-5),
    "statistics": lambda x: torch.native_group_norm(x.view(2, 4, 0), None, None, 2, 4, 0, 2, 1e-5),
}


def test_results_without_elements_keep_their_strides_on_inductor():
    def program(x):
        return [function(x) for function in EMPTY.values()]

    x = torch.empty(0, 4, 6)
    found = zip(*(tree_leaves(call(x)) for call in (program, eductor.compile(program, strict=True))), strict=True)
    for expected, got in found:
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected, equal_nan=True)
