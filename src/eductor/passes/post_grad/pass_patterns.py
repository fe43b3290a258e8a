"""Exact rewrites of small patterns: cats of pieces, pieces of cats, sums of constants, indices that are known."""

from __future__ import annotations

import operator

import torch

from eductor.passes.functional.constants import CUMSUM, pointless_cumsum
from eductor.passes.functional.indexing import INDEX, INDEX_ADD, randperm_index, randperm_index_add
from eductor.passes.post_grad.rewrites.cats import cat_slice_cat, cat_splitwithsizes, splitwithsizes_cat
from eductor.patterns import pattern_pass
from eductor.pipeline.base import f32

aten = torch.ops.aten


@pattern_pass(stage="post_grad", numerics="exact")
def pass_patterns() -> None:
    """Exact rewrites of small patterns: cats of pieces, pieces of cats, sums of constants, indices that are known.

    It pays always: pieces and cats of them are not copied, sums of constants not computed, bounds not checked.
    """


pass_patterns.rule(CUMSUM)(pointless_cumsum)
pass_patterns.rule(INDEX)(randperm_index)
pass_patterns.rule(INDEX_ADD)(randperm_index_add)
# Nests of any number of pieces and operands are no patterns.
pass_patterns.call(aten.slice, operator.getitem)(cat_splitwithsizes)
pass_patterns.call(aten.cat)(splitwithsizes_cat)
pass_patterns.call(aten.cat)(cat_slice_cat)


@pass_patterns.example
def pieces_put_together(x: torch.Tensor = f32(4, 6)) -> torch.Tensor:
    return torch.cat(x.split([2, 3, 1], -1), 1) * 2


@pass_patterns.example
def taken_apart_again(x: torch.Tensor = f32(4, 2), y: torch.Tensor = f32(4, 3)) -> tuple[torch.Tensor, ...]:
    a, b = torch.cat([x, y], 1).split([2, 3], 1)
    return a.sin(), b.cos()


@pass_patterns.example
def first_columns_once_more(x: torch.Tensor = f32(4, 3), y: torch.Tensor = f32(4, 2)) -> torch.Tensor:
    both = torch.cat([x, y], 1)
    return torch.cat([both, both[:, :2]], 1)


@pass_patterns.example
def positions(x: torch.Tensor = f32(2, 6)) -> torch.Tensor:
    return torch.ones(2, 6, dtype=torch.int64).cumsum(1) * x


@pass_patterns.example
def shuffled_rows(x: torch.Tensor = f32(6, 3)) -> torch.Tensor:
    return x[torch.randperm(6)[:4]]


@pass_patterns.refuses("not all pieces of the tensor in their order")
def one_piece_is_missing(x: torch.Tensor = f32(4, 6)) -> torch.Tensor:
    a, b, _ = x.split(2, 1)
    return torch.cat([a, b], 1) * 2


@pass_patterns.refuses("a separate output")
def pieces_that_are_returned(x: torch.Tensor = f32(4, 3), y: torch.Tensor = f32(4, 3)) -> tuple[torch.Tensor, ...]:
    a, b = torch.cat([x, y]).split(4)
    return a, b


@pass_patterns.refuses("it is not within one operand")
def piece_of_both(x: torch.Tensor = f32(4, 3), y: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    return torch.cat([x, y])[2:6].sin()


@pass_patterns.refuses("the inner cat is used elsewhere")
def inner_cat_with_another_user(x: torch.Tensor = f32(4, 3), y: torch.Tensor = f32(4, 3)) -> tuple[torch.Tensor, ...]:
    both = torch.cat([x, y])
    return torch.cat([both, x]), both.sin()


@pass_patterns.refuses("rounded, step by step")
def sums_of_a_tenth(x: torch.Tensor = f32(2, 6)) -> torch.Tensor:
    return torch.full((2, 6), 0.1).cumsum(1) * x


@pass_patterns.refuses("a permutation of 7 numbers is not known to stay within dimension 0")
def rows_of_a_larger_permutation(x: torch.Tensor = f32(6, 3)) -> torch.Tensor:
    return x[torch.randperm(7)[:4]]
