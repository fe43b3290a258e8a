"""Calls that write memory which they also read in another place: eager's error, or its result."""

from __future__ import annotations

import pytest
import torch

import eductor

ENGINES = [{"engine": "aten"}, {"profile": "exact"}, {"engine": "inductor"}]

RAISING = {
    "shifted": lambda a: a[1:].add_(a[:-1]),
    "copied": lambda a: a[1:].copy_(a[:-1]),
    "assigned": lambda a: a.__setitem__(slice(1, None), a[:-1]),
    "out": lambda a: torch.add(a[1:], 1, out=a[:-1]),
    "transposed": lambda a: a.view(2, 3).t().add_(a.view(3, 2)),
    "expanded": lambda a: a.expand(3, 6).add_(1),
    "indexed": lambda a: a[1:].index_add_(0, torch.tensor([0, 1]), a[:2]),
    "its own elements by index": lambda a: a.index_put_((torch.tensor([1, 0, 2, 3, 4, 5]),), a),
    "scattered": lambda a: a[1:].scatter_(0, torch.tensor([0, 1]), a[:2]),
    "lists": lambda a: torch._foreach_add_([a[1:]], [a[:-1]]),
}

IN_ORDER = {
    "each element twice": lambda a: a.as_strided((2, 2), (1, 1)).add_(1),
    "its own elements by mask": lambda a: a[1:].masked_scatter_(a[:-1] > 1, a[1:]),
    "columns": lambda a: a.view(2, 3)[:, 1:].copy_(a.view(2, 3)[:, :-1]),
}

APART = {
    "same place": lambda a: a[2:4].mul_(a[2:4]),
    "halves": lambda a: a[:3].add_(a[3:]),
    "interleaved": lambda a: a[::2].add_(a[1::2]),
    "other columns": lambda a: a.view(2, 3)[:, :1].add_(a.view(2, 3)[:, 2:]),
    "one column for all others": lambda a: a.view(2, 3)[:, 1:].add_(a.view(2, 3)[:, :1]),
    "copies": lambda a: a[1:].add_(a[:-1].clone()),
    "one element": lambda a: a[1:].fill_(a[0]),
    "elements in lists": lambda a: torch._foreach_mul_([a[:2], a[2:]], [a[:2], a[2:]]),
}


def in_place(write):
    def program(a):
        a = a * 1
        write(a)
        return a

    return program


@pytest.mark.filterwarnings("ignore::eductor.EductorWarning", "ignore:Use of index_put_ on expanded tensors")
@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize("write", RAISING.values(), ids=RAISING)
def test_the_error_of_eager(write, options):
    with pytest.raises(RuntimeError) as expected:
        in_place(write)(torch.arange(6.0))
    with pytest.raises(RuntimeError) as got:
        eductor.compile(in_place(write), **options)(torch.arange(6.0))
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize("write", IN_ORDER.values(), ids=IN_ORDER)
def test_results_that_depend_on_the_order(write, options):
    with pytest.warns(eductor.EductorWarning, match="in several places|in another place"):
        got = eductor.compile(in_place(write), **options)(torch.arange(6.0))
    assert torch.equal(got, in_place(write)(torch.arange(6.0)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("write", APART.values(), ids=APART)
def test_what_does_not_overlap_is_compiled(write, dynamic):
    run = eductor.compile(in_place(write), engine="aten", strict=True, dynamic=dynamic)
    assert torch.equal(run(torch.arange(6.0)), in_place(write)(torch.arange(6.0)))


@pytest.mark.filterwarnings("ignore::eductor.EductorWarning")
def test_sizes_that_may_change():
    run = eductor.compile(in_place(RAISING["shifted"]), engine="aten", dynamic=True)
    for n in (6, 9):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            run(torch.arange(float(n)))
