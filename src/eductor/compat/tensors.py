"""What a tensor is to autograd and in memory, beyond what it says itself."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def made_without_grad_mode(value: torch.Tensor) -> bool:
    """Whether a tensor is a view that was made while no gradients were recorded."""
    autograd: Any = torch._C._autograd
    return value._is_view() and autograd._get_creation_meta(value) == autograd.CreationMeta.NO_GRAD_MODE


def must_not_be_written(value: torch.Tensor) -> bool:
    """Whether autograd forbids to write a tensor: one of several views of one call, or one made without grad mode."""
    if not value.requires_grad or not value._is_view():
        return False
    autograd: Any = torch._C._autograd
    return bool(autograd._get_creation_meta(value) != autograd.CreationMeta.DEFAULT)


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written; nobody counts for tensors of inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def set_versions(tensors: list[torch.Tensor], versions: list[int]) -> None:
    """Sets what autograd takes for the number of writes to a tensor."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def with_history(value: Any) -> Any:
    """A value from which others can be computed, though its base was written since, which autograd may not follow."""
    if not isinstance(value, torch.Tensor) or not must_not_be_written(value) or not value._version:
        return value
    leaf = value.detach().requires_grad_()
    if not made_without_grad_mode(value):
        return leaf.unsqueeze(0).unbind(0)[0]
    with torch.no_grad():
        return leaf.view_as(leaf)


def is_wrapper_subclass(tensor: torch.Tensor) -> bool:
    """Whether a tensor wraps others (DTensor, nested, quantized), so that it is more than its data."""
    return type(tensor) is not FakeTensor and bool(is_traceable_wrapper_subclass(tensor))


def is_batched(value: Any) -> bool:
    """Whether a tensor stands for a batch of tensors inside of a vmap."""
    if value is None:
        return False
    functorch: Any = torch._C._functorch
    return bool(functorch.is_batchedtensor(value) or functorch.is_legacy_batchedtensor(value))


def plain_strides(value: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a tensor, where they are numbers and no two elements share memory."""
    sizes = (*value.shape, *value.stride())
    if not all(type(x) is int for x in sizes) or torch._debug_has_internal_overlap(value) != 0:
        return None
    return tuple(value.stride())


def memory_format_of(value: torch.Tensor) -> torch.memory_format:
    """The memory format that a tensor's strides are in, or the contiguous one."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(value)
