"""The operators that the policy `compat` recomputes, and those it expects to fuse, as torch's partitioner does.

Elementwise operators are found by their tag, all others by name, with a reason for each kind.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.partition.node_info import is_size


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """Operators listed for the same reason."""

    reason: str
    names: frozenset[str]


def _kind(reason: str, *names: str) -> OperatorKind:
    return OperatorKind(reason, frozenset(name if "::" in name else f"aten::{name}" for name in names))


ALLOWED = (
    _kind(
        "a view: nothing is computed",
        *("_unsafe_view", "alias", "as_strided", "broadcast_tensors", "expand", "permute", "prims::broadcast_in_dim"),
        *("reshape", "select", "slice", "split", "squeeze", "t", "unsqueeze", "view"),
    ),
    _kind("a copy, perhaps in another dtype: it fuses", "_to_copy", "lift_fresh_copy", "to", "type_as"),
    _kind(
        "a constructor: no memory is read",
        *("arange", "empty", "empty_like", "full", "full_like", "new_zeros", "ones", "prims::iota", "scalar_tensor"),
        *("zeros", "zeros_like"),
    ),
    _kind("elementwise, although not tagged pointwise", "__and__", "__or__", "prims::div"),
    _kind(
        "elementwise, but reads another index",
        *("gather", "index", "prims::_low_memory_max_pool_offsets_to_indices", "triu"),
    ),
    _kind(
        "a reduction in one pass; those that shrink their input much have a separate ban",
        *("_grad_sum_to_size", "amax", "any", "argmax", "mean", "prims::prepare_softmax_online", "prims::sum"),
        *("prims::var", "std", "sum", "sum_to_size", "var", "var_mean"),
    ),
)

HEAVY = _kind(
    "compute-bound: reading the result takes less time",
    *("_efficient_attention_forward", "_flash_attention_forward", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_flash_attention", "_scaled_mm", "addmm", "bmm", "convolution", "convolution_backward", "mm"),
    "upsample_bilinear2d",
)

RANDOM = _kind("random numbers: drawn inside a kernel, never drawn twice", "native_dropout", "rand_like", "randn_like")

_NAMED = frozenset[str]().union(*(kind.names for kind in ALLOWED))


def is_allowed(node: Node) -> bool:
    """Whether an operator is known to be cheap: it is listed, elementwise, an item of a tuple, or arithmetic on sizes."""
    target = node.target
    if isinstance(target, OpOverload):
        return _name(node) in _NAMED or _is_elementwise(target)
    return target is operator.getitem or (node.op == "call_function" and is_size(node))


def is_heavy(node: Node) -> bool:
    """Whether an operator is compute-bound."""
    return _name(node) in HEAVY.names


def can_fuse(made: Node, reader: Node) -> bool:
    """Whether a node and its reader can fuse into one kernel; a concatenation fuses with all its operands."""
    return _name(reader) == "aten::cat" or (_fuses(made) and _fuses(reader))


def _fuses(node: Node) -> bool:
    return is_allowed(node) or _name(node) in RANDOM.names


def _name(node: Node) -> str:
    return str(node.target._schema.name) if isinstance(node.target, OpOverload) else ""


@functools.lru_cache(maxsize=1 << 12)
def _is_elementwise(op: OpOverload) -> bool:
    """Whether any overload of an operator is tagged pointwise: as in torch, all its overloads then count as cheap."""
    packet = op.overloadpacket
    return any(torch.Tag.pointwise in getattr(packet, form).tags for form in packet.overloads())
