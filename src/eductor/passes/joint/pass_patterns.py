"""Exact rewrites of small patterns: chains of views and conversions, one-hot scatters, indices that are known."""

from __future__ import annotations

import torch

from eductor.passes.functional.constants import ONE_HOT, one_index_a_row, scatter_upon_const_tensor
from eductor.passes.functional.indexing import (
    INDEX,
    INDEX_ADD,
    IOTAS,
    fix_iota_device,
    randperm_index,
    randperm_index_add,
)
from eductor.passes.joint.rewrites.conversions import TWO_CONVERSIONS, one_conversion
from eductor.passes.joint.rewrites.views import PERMUTATIONS, RESHAPES, SQUEEZES, one_permutation, one_reshape
from eductor.patterns import pattern_pass
from eductor.pipeline.base import f32, i64

aten = torch.ops.aten


@pattern_pass(stage="joint", numerics="exact")
def pass_patterns() -> None:
    """Exact rewrites of small patterns: chains of views and conversions, one-hot scatters, indices that are known.

    It pays always: fewer views to read, fewer conversions, and no memory for what is one number but for few places.
    """


pass_patterns.rule(TWO_CONVERSIONS)(one_conversion)
pass_patterns.rule(ONE_HOT, check=one_index_a_row)(scatter_upon_const_tensor)
pass_patterns.rule(INDEX)(randperm_index)
pass_patterns.rule(INDEX_ADD)(randperm_index_add)
# Chains of any length, and all users of a value, are no patterns.
pass_patterns.call(*RESHAPES, *SQUEEZES)(one_reshape)
pass_patterns.call(*PERMUTATIONS)(one_permutation)
pass_patterns.call(*IOTAS)(fix_iota_device)


@pass_patterns.example
def two_views(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    return x.view(6, 4).view(3, 8) + 1


@pass_patterns.example
def there_and_back(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    y = x.permute(2, 0, 1)
    return y.permute(1, 2, 0).sin() + y.sum()


@pass_patterns.example
def widened_and_narrowed(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.double().bfloat16() * 2


@pass_patterns.example
def one_hot(index: torch.Tensor = i64(4, 1), scale: torch.Tensor = f32(4, 5)) -> torch.Tensor:
    return torch.zeros(4, 5).scatter(1, index, -1.0) * scale


@pass_patterns.example
def shuffled_rows(x: torch.Tensor = f32(6, 3)) -> torch.Tensor:
    return x[torch.randperm(6)[:4]]


@pass_patterns.example
def added_to_shuffled_columns(x: torch.Tensor = f32(6, 3), y: torch.Tensor = f32(6, 3)) -> torch.Tensor:
    return x.index_add(1, torch.randperm(3), y)


@pass_patterns.refuses("torch.float16 does not have every value of torch.float32")
def narrowed_and_widened(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.half().double() * 2


@pass_patterns.refuses("a separate output")
def view_that_is_returned(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.view(2, 3)


@pass_patterns.refuses("a permutation of 7 numbers is not known to stay within dimension 0")
def rows_of_a_larger_permutation(x: torch.Tensor = f32(6, 3)) -> torch.Tensor:
    return x[torch.randperm(7)[:4]]


@pass_patterns.refuses("the product with alpha=2 may be rounded otherwise")
def weighted_sum(x: torch.Tensor = f32(6, 3), y: torch.Tensor = f32(6, 3)) -> torch.Tensor:
    return x.index_add(0, torch.randperm(6), y, alpha=2)


@pass_patterns.refuses("dimension 1 has several indices")
def several_hot(index: torch.Tensor = i64(4, 2), scale: torch.Tensor = f32(4, 5)) -> torch.Tensor:
    return torch.zeros(4, 5).scatter(1, index, 1.0) * scale
