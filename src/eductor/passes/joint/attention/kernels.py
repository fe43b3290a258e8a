"""Which attentions torch has one kernel for; for others its call materializes scores and weights, like eager."""

from __future__ import annotations

from typing import Any, Literal

import torch

from eductor.compat import TorchDispatchMode
from eductor.graph import No, known_equal, known_true, tensor_of
from eductor.passes.joint.attention.masks import Masks
from eductor.passes.joint.attention.scores import Added

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_DTYPES = {"cpu": (torch.float32, torch.float64, *_HALF), "cuda": (torch.float32, *_HALF)}


def has_kernel(
    query: torch.Tensor, value: torch.Tensor, dtype: torch.dtype, dropout: float, masks: Masks
) -> Literal[True] | No:
    """Whether torch has a kernel for an attention in a dtype; without one, the call would not pay."""
    device = query.device.type
    if device not in _DTYPES:
        return No(f"torch has no attention kernel for the device {device}")
    if dtype not in _DTYPES[device]:
        return No(f"torch has no attention kernel for {dtype} on {device}")
    if device == "cpu":
        return _has_cpu_kernel(query, value, dropout)
    return _takes_masks(dtype, masks) if not masks.is_causal else True


def _has_cpu_kernel(query: torch.Tensor, value: torch.Tensor, dropout: float) -> Literal[True] | No:
    if dropout:
        return No("torch's attention kernel for CPUs has no dropout")
    if not known_equal(query.shape[-1], value.shape[-1]):
        return No("torch's attention kernel for CPUs requires values as wide as queries and keys")
    if known_true(value.shape[-2] < _FEWEST_KEYS):
        return No(f"with fewer than {_FEWEST_KEYS} keys, torch's attention kernel for CPUs hides NaN")
    return True


def may_hide_nan(device: torch.device, keys: Any) -> bool:
    """Whether this many keys, perhaps a symbolic number, may be too few for a kernel to propagate NaN."""
    return device.type == "cpu" and not known_true(keys >= _FEWEST_KEYS)


_FEWEST_KEYS = 16
"""The lanes of a vector: a row of NaN that fills none is mistaken for one without keys, whose result is 0."""


def _takes_masks(dtype: torch.dtype, masks: Masks) -> Literal[True] | No:
    """Whether the kernel takes the masks: on CUDA, they have the dtype of the query."""
    for step in masks.steps:
        if isinstance(step, Added):
            mask = tensor_of(step.mask)
            if mask is not None and mask.dtype.is_floating_point and mask.dtype.itemsize > dtype.itemsize:
                return No(
                    f"the mask {step.mask.name} is of {mask.dtype}, and the kernel would round it to {dtype}", step.mask
                )
    return True


def kernel_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The dtype the kernel computes in. For infinite scores in half precision the CPU's gives 0, eager NaN."""
    return torch.float32 if device.type == "cpu" and dtype in _HALF else dtype


class OneKernel(TorchDispatchMode):
    """A mode in which a call of torch's attention is one kernel, or fails."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (aten._softmax, aten._safe_softmax):
            raise RuntimeError("torch has no attention kernel for these shapes and strides")
        return func(*args, **(kwargs or {}))
