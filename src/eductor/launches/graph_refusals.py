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
        "_cholesky_solve_helper",
        "_ctc_loss_backward",
        "_cudnn_ctc_loss",
        "_functional_assert_scalar",
        "_fused_moving_avg_obs_fq_helper",
        "_fused_moving_avg_obs_fq_helper_functional",
        "_linalg_check_errors",
        "_linalg_det",
        "_linalg_eigh",
        "_linalg_eigvals",
        "_linalg_slogdet",
        "_linalg_solve_ex",
        "_linalg_svd",
        "cholesky_inverse",
        "embedding_renorm",
        "embedding_renorm_",
        "geqrf",
        "histc",
        "linalg_cholesky_ex",
        "linalg_eig",
        "linalg_householder_product",
        "linalg_inv_ex",
        "linalg_ldl_factor_ex",
        "linalg_ldl_solve",
        "linalg_lu",
        "linalg_lu_factor_ex",
        "linalg_lu_solve",
        "linalg_matrix_exp",
        "linalg_qr",
        "linalg_solve_triangular",
        "masked_scatter_backward",
        "mode",
        "multinomial",
        "ormqr",
        "record_stream",
        "resize_",
        "resize_as_",
        "segment_reduce",
        "set_",
        "triangular_solve",
    }
)
"""ATen operators that wait for the device, read from it, or change what a storage is, besides those whose tag says so. All of
dense linear algebra is here: libraries copy error codes and pivots to the host, for some sizes and in some versions."""

_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operators that read values of tensors on the host."""

_INDEXING = frozenset({"_index_put_impl_", "_unsafe_index", "_unsafe_index_put", "index", "index_put", "index_put_"})
"""Operators that read values of masks alone."""

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
    if name in _INDEXING:
        return No(f"{target} with a mask waits for the device", node) if _has_mask(node) else None
    if name in _SYNCHRONIZING or _TAGS.intersection(target.tags) or compat.is_unsafe_in_cuda_graphs(target):
        return No(f"{target} waits for the device", node)
    if name == "searchsorted" and node.kwargs.get("sorter") is not None:
        return No(f"{target} with a sorter waits for the device", node)
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
