"""Decompositions of layer and group norms on the CPU that give the mean of no elements as its kernels do: zero."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from eductor.graph.values.meta import known_equal

aten = torch.ops.aten

NORMS = (aten.native_layer_norm.default, aten.native_group_norm.default)


def with_empty_means(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The decompositions of norms in a table, changed where they divide zero by zero."""
    return {op: functools.partial(_norm, table[op]) for op in NORMS if op in table}


def _norm(decomposition: Callable[..., Any], input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    result, mean, deviation = decomposition(input, *args, **kwargs)
    if input.device.type == "cpu" and known_equal(input.numel(), 0):
        mean = torch.zeros_like(mean)
    return result, mean, deviation
