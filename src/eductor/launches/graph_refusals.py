"""Why a graph cannot be captured, as far as the graph alone says it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from eductor import compat
from eductor.compat import OpOverload
from eductor.graph.no import No
from eductor.graph.values.meta import value_of

_SYNCHRONIZING = frozenset(
    {
        "_assert_async",
        "_assert_scalar",
        "_linalg_check_errors",
        "_local_scalar_dense",
        "_unique2",
        "bincount",
        "ctc_loss",
        "equal",
        "item",
        "linalg_solve_ex",
        "masked_select",
        "multinomial",
        "nonzero",
        "repeat_interleave",
        "resize_",
        "set_",
        "unique_consecutive",
        "unique_dim",
    }
)
"""ATen operators that wait for the device, read from it, or change what a storage is."""

_NAMESPACES = frozenset({"aten", "prims", "eductor", "inductor", "inductor_prims", "triton_kernel_wrapper"})
_STRUCTURAL = frozenset(
    {
        "flex_attention",
        "flex_attention_backward",
        "invoke_subgraph",
        "triton_kernel_wrapper_functional",
        "triton_kernel_wrapper_mutation",
    }
)
"""Higher-order operators that launch kernels and do nothing on the host."""


def why_not_captured(module: GraphModule, device: torch.device) -> No | None:
    """The first operator or value of a graph that keeps it from being captured on a device."""
    for node in _nodes(module):
        for refusal in (_of_target(node), _of_values(node, device)):
            if refusal is not None:
                return refusal
    return None


def _nodes(module: GraphModule) -> Iterator[Node]:
    """All calls and placeholders of a graph, and of the bodies that it calls."""
    for inner in module.modules():
        if isinstance(inner, GraphModule):
            yield from (n for n in inner.graph.nodes if n.op in ("call_function", "placeholder", "get_attr"))


def _of_target(node: Node) -> No | None:
    target = node.target
    if node.op != "call_function":
        return None
    if isinstance(target, compat.HigherOrderOperator):
        return None if target.name() in _STRUCTURAL else No(f"{target.name()} decides on the host", node)
    if not isinstance(target, OpOverload):
        return None  # a number, or an item of a tuple
    name = target.name().split("::")[1].split(".")[0]
    if target.namespace not in _NAMESPACES:
        return No(f"{target} may do something on the host in each call", node)
    if name in _SYNCHRONIZING or compat.is_unsafe_in_cuda_graphs(target):
        return No(f"{target} waits for the device", node)
    if name in ("index_put", "index_put_", "index", "_unsafe_index_put", "_unsafe_index") and _has_mask(node):
        return No(f"{target} with a mask waits for the device", node)
    return None


def _has_mask(node: Node) -> bool:
    indices = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], (list, tuple)) else ()
    values = (value_of(i) for i in indices if isinstance(i, Node))
    return any(isinstance(v, torch.Tensor) and v.dtype in (torch.bool, torch.uint8) for v in values)


def _of_values(node: Node, device: torch.device) -> No | None:
    values = value_of(node)
    for value in values if isinstance(values, (list, tuple)) else (values,):
        if isinstance(value, torch.Tensor) and value.device != device:
            return No(f"{node.name} lies on {value.device}", node)
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            return No(f"{node.name} is sparse", node)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and compat.has_unbacked_symbols(value):
            return No(f"{node.name} is known on the device only", node)
    return None
