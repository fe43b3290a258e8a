"""A tensor's state in autograd and its memory layout, beyond its public attributes."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def made_without_grad_mode(value: torch.Tensor) -> bool:
    """Whether a tensor is a view made under no_grad."""
    autograd: Any = torch._C._autograd
    return value._is_view() and autograd._get_creation_meta(value) == autograd.CreationMeta.NO_GRAD_MODE


def must_not_be_written(value: torch.Tensor) -> bool:
    """Whether autograd forbids writing to a tensor: a view of a multi-output call, or one made under no_grad."""
    if not value.requires_grad or not value._is_view():
        return False
    autograd: Any = torch._C._autograd
    return bool(autograd._get_creation_meta(value) != autograd.CreationMeta.DEFAULT)


def version_of(tensor: torch.Tensor) -> int:
    """The version counter of a tensor; -1 for inference tensors, which have none."""
    return -1 if tensor.is_inference() else tensor._version


def set_versions(tensors: list[torch.Tensor], versions: list[int]) -> None:
    """Sets the version counters of tensors."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def storage_owners(storage: torch.UntypedStorage) -> int:
    """How many tensors own a storage, arrays and capsules of other libraries made of such tensors included."""
    owners: int = torch._C._storage_Use_Count(storage._cdata)
    return owners - 1  # without the Python object


def owns_alone(storage: torch.UntypedStorage) -> bool:
    """Whether memory of a GPU is not shared with another process."""
    has_plain_deleter = getattr(torch._C, "_has_Standard_Deleter", None)  # not in builds without CUDA
    return has_plain_deleter is None or bool(has_plain_deleter(storage._cdata))


def expect_dynamic(value: torch.Tensor, dims: frozenset[int]) -> None:
    """Tells Dynamo that these sizes of a tensor may differ in the next call, as `maybe_mark_dynamic` does."""
    known = getattr(value, "_dynamo_weak_dynamic_indices", ())
    value._dynamo_weak_dynamic_indices = {*known, *dims}  # type: ignore[attr-defined]


def with_history(value: Any) -> Any:
    """A value that autograd can differentiate from, of a view whose base was written since it was made."""
    if not isinstance(value, torch.Tensor) or not must_not_be_written(value) or not value._version:
        return value
    leaf = value.detach().requires_grad_()
    if not made_without_grad_mode(value):
        return leaf.unsqueeze(0).unbind(0)[0]
    with torch.no_grad():
        return leaf.view_as(leaf)


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor belongs to a running function transform, such as `torch.func.grad`."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_wrapper_subclass(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a wrapper subclass (DTensor, nested, quantized)."""
    return type(tensor) is not FakeTensor and bool(is_traceable_wrapper_subclass(tensor))


def is_batched(value: Any) -> bool:
    """Whether a tensor is a batched tensor inside of a vmap."""
    if value is None:
        return False
    functorch: Any = torch._C._functorch
    return bool(functorch.is_batchedtensor(value) or functorch.is_legacy_batchedtensor(value))


def plain_strides(value: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a tensor; None if symbolic, or if elements may overlap."""
    sizes = (*value.shape, *value.stride())
    if not all(type(x) is int for x in sizes) or torch._debug_has_internal_overlap(value) != 0:
        return None
    return tuple(value.stride())


def memory_format_of(value: torch.Tensor) -> torch.memory_format:
    """The memory format of a tensor's strides; contiguous if they have none."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(value)
