"""Which operators the policy `compat` computes again, and which it expects to share a kernel, as torch's partitioner does.

What is elementwise is known by the tag of its operator, all else by name, with a reason for each kind.
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
class Kind:
    """Operators that are listed for one reason."""

    reason: str
    names: frozenset[str]


def _kind(reason: str, *names: str) -> Kind:
    return Kind(reason, frozenset(name if "::" in name else f"aten::{name}" for name in names))


ALLOWED = (
    _kind(
        "another form of what is there: nothing is computed",
        *("_unsafe_view", "alias", "as_strided", "broadcast_tensors", "expand", "permute", "prims::broadcast_in_dim"),
        *("reshape", "select", "slice", "split", "squeeze", "t", "unsqueeze", "view"),
    ),
    _kind("a copy, perhaps in another dtype: it fuses", "_to_copy", "lift_fresh_copy", "to", "type_as"),
    _kind(
        "made from nothing: no memory is read",
        *("arange", "empty", "empty_like", "full", "full_like", "new_zeros", "ones", "prims::iota", "scalar_tensor"),
        *("zeros", "zeros_like"),
    ),
    _kind("elementwise, although no tag says so", "__and__", "__or__", "prims::div"),
    _kind(
        "elementwise but for the place that is read",
        *("gather", "index", "prims::_low_memory_max_pool_offsets_to_indices", "triu"),
    ),
    _kind(
        "one pass over what is there; those that give much less than they read are a ban of their own",
        *("_grad_sum_to_size", "amax", "any", "argmax", "mean", "prims::prepare_softmax_online", "prims::sum"),
        *("prims::var", "std", "sum", "sum_to_size", "var", "var_mean"),
    ),
)

HEAVY = _kind(
    "so much is computed that reading the result takes less time",
    *("_efficient_attention_forward", "_flash_attention_forward", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_flash_attention", "_scaled_mm", "addmm", "bmm", "convolution", "convolution_backward", "mm"),
    "upsample_bilinear2d",
)

RANDOM = _kind("drawn inside of a kernel, and never drawn twice", "native_dropout", "rand_like", "randn_like")

_NAMED = frozenset[str]().union(*(kind.names for kind in ALLOWED))


def is_allowed(node: Node) -> bool:
    """Whether an operator is known to be cheap: it is listed, elementwise, an item of a tuple, or arithmetic of sizes."""
    target = node.target
    if isinstance(target, OpOverload):
        return _name(node) in _NAMED or _is_elementwise(target)
    return target is operator.getitem or (node.op == "call_function" and is_size(node))


def is_heavy(node: Node) -> bool:
    """Whether an operator computes much for each byte of its result."""
    return _name(node) in HEAVY.names


def can_fuse(made: Node, reader: Node) -> bool:
    """Whether what a value is made by and what reads it can be one kernel; a concatenation takes in all that it reads."""
    return _name(reader) == "aten::cat" or (_fuses(made) and _fuses(reader))


def _fuses(node: Node) -> bool:
    return is_allowed(node) or _name(node) in RANDOM.names


def _name(node: Node) -> str:
    return str(node.target._schema.name) if isinstance(node.target, OpOverload) else ""


@functools.lru_cache(maxsize=1 << 12)
def _is_elementwise(op: OpOverload) -> bool:
    """Whether an operator is elementwise in one of its forms: as in torch, the others are taken for cheap with it."""
    packet = op.overloadpacket
    return any(torch.Tag.pointwise in getattr(packet, form).tags for form in packet.overloads())
