"""Rewrites by pattern: what a permutation picks needs no check of its bounds."""

from __future__ import annotations

import torch

from eductor.patterns import pattern_pass
from eductor.pipeline.base import f32

aten = torch.ops.aten


@pattern_pass(stage="joint", numerics="exact")
def pass_patterns() -> None:
    """Rewrites by pattern: what a permutation picks needs no check of its bounds."""


def randperm_rows(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some rows of a tensor, drawn without replacement."""
    index = torch.randperm(x.shape[0], device=x.device)[:count]
    return aten.index.Tensor(x, [index]), index


def randperm_index(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same without a check of the indices, which are in range by their making."""
    index = torch.randperm(x.shape[0], device=x.device)[:count]
    return aten._unsafe_index.Tensor(x, [index]), index


for _shape in ((6,), (6, 3), (6, 3, 2), (6, 3, 2, 2)):
    _name = f"randperm_index_{len(_shape)}d"
    pass_patterns.replace(randperm_rows, randperm_index, inputs=[f32(*_shape), 4], name=_name, stored=f"joint.{_name}")


@pass_patterns.example
def shuffled_rows(x: torch.Tensor = f32(6, 3)) -> torch.Tensor:
    return x[torch.randperm(6)[:4]]


@pass_patterns.refuses("is 5, the pattern wants x.shape[0], which is 6")
def rows_of_a_larger_permutation(x: torch.Tensor = f32(6, 3)) -> torch.Tensor:
    return x[torch.randperm(5)[:4]]
