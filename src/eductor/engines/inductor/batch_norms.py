"""Decompositions of batch norms on the CPU that compute, as its kernels do, in the precision of the parameters.

Torch's decompositions round the mean and the deviation that are saved for the backward to the input's dtype. The kernels
keep them in float32 if the parameters are float32, as under autocast: over few rows, a gradient is a small difference of
large numbers, which this rounding would change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten

FORWARDS = (
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
    aten._batch_norm_with_update.default,
    aten._batch_norm_with_update_functional.default,
    aten._batch_norm_no_update.default,
)


def in_precision_of_parameters(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The decompositions of batch norms in a table, changed to keep the precision that the kernels keep."""
    return {op: functools.partial(_norm, table[op]) for op in FORWARDS if op in table}


def _norm(decomposition: Callable[..., Any], input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    dtypes = {x.dtype for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)}
    # The kernels mix only these dtypes.
    if input.device.type != "cpu" or input.dtype not in (torch.bfloat16, torch.half) or torch.float32 not in dtypes:
        return decomposition(input, *args, **kwargs)
    result, *kept = decomposition(input.to(torch.float32), *args, **kwargs)
    return result.to(input.dtype), *kept
