"""Removes no-ops: full slices, views of the same shape, needless copies."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph import Bound, tensor_of
from eductor.passes.noops import copy, full_slice, no_op, no_ops_of_both, same_view
from eductor.pipeline import f32, i64, rule_pass

aten = torch.ops.aten
prims = torch.ops.prims


@rule_pass(stage=("joint", "post_grad"), numerics="exact")
def remove_noop_ops() -> None:
    """Removes no-ops: full slices, views of the same shape, needless copies.

    It pays always: one call less, often one copy less, and the calls around it become adjacent.
    """


def full_slice_scatter(bound: Bound) -> bool:
    return full_slice(bound)


def same_dtype(bound: Bound) -> bool:
    tensor = tensor_of(bound["a"])
    return tensor is not None and bool(bound["dtype"] == tensor.dtype)


def same_device(bound: Bound) -> bool:
    tensor = tensor_of(bound["a"])
    return tensor is not None and torch.device(bound["device"]) == tensor.device


def copy_over(bound: Bound) -> bool:
    """A copy over the whole of a tensor, unless that tensor is in pinned memory."""
    into = bound["self"]
    return not (isinstance(into, Node) and into.kwargs.get("pin_memory"))


_VIEWS = (aten.view.default, aten.reshape, aten._unsafe_view, aten.expand, aten.permute, aten.transpose, aten.squeeze)

no_ops_of_both(remove_noop_ops)
no_op(remove_noop_ops, full_slice_scatter, aten.slice_scatter.default, source="src")
no_op(remove_noop_ops, same_view, *_VIEWS, aten.view.dtype, aten.as_strided)
no_op(remove_noop_ops, same_dtype, prims.convert_element_type, source="a")
no_op(remove_noop_ops, same_device, prims.device_put, source="a")
no_op(remove_noop_ops, copy_over, aten.copy.default, source="src")
no_op(remove_noop_ops, copy, aten.alias, aten.clone, aten._to_copy, aten.lift_fresh_copy, aten.detach)


@remove_noop_ops.example
def needless_clone(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.clone() + 1


@remove_noop_ops.example
def view_of_the_same_shape(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.view(2, 3)[:, 0:3].cos()


@remove_noop_ops.example
def rounding_of_integers(x: torch.Tensor = i64(4)) -> torch.Tensor:
    return torch.floor(x) * 2


@remove_noop_ops.refuses("leaves the graph")
def copy_that_is_returned(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.clone().t()


@remove_noop_ops.refuses("a separate output")
def view_that_is_returned(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.view(2, 3)


@remove_noop_ops.refuses("strides")
def copy_into_another_layout(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.t().clone(memory_format=torch.contiguous_format) + 1
