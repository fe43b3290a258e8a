"""Reshapes and permutations, left out where they change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eductor.graph.values.meta import known_equal


def reshaped(value: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """A tensor in another shape."""
    return value if known_equal(list(value.shape), list(shape)) else value.reshape(shape)


def permuted(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A tensor with its dimensions in another order."""
    return value if list(order) == sorted(order) else value.permute(list(order))
