"""Stores a mask of attention that is computed and then expanded in its own size."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter
from eductor.ops.copies import stored
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten

_KERNELS = (
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention,
    aten._scaled_dot_product_cudnn_attention_backward,
)
"""Those that read an expanded mask as it is; for others, Inductor copies it."""


@graph_pass(stage="lower", numerics="exact")
def store_small_masks(graph: GraphView, rewrite: Rewriter) -> None:
    """Stores a mask of attention that is computed and then expanded in its own size.

    It pays for kernels of CUDA that read an expanded mask through its strides: one mask for many queries or heads is
    computed once, not once for each of them.
    """
    for node in graph.find(*_KERNELS):
        small = _small_mask(graph, node)
        if isinstance(small, No):
            rewrite.reject(small, node)
            continue
        mask, expanded = small
        kept = rewrite.insert(stored.default, expanded["self"], before=mask)
        rewrite.replace(mask, aten.expand, kept, expanded["size"])


def _small_mask(graph: GraphView, node: Node) -> tuple[Node, Bound] | No:
    """The mask that a kernel reads, and the expansion that it is."""
    bound = graph.bind(node)
    mask = bound["attn_bias"] if isinstance(bound, Bound) else None
    if not isinstance(mask, Node):
        return No("it reads no mask")
    expanded = graph.bind(mask)
    if not isinstance(expanded, Bound) or expanded.packet is not aten.expand:
        return No("its mask is not expanded", mask)
    small = expanded["self"]
    if small.op != "call_function" or small.target is stored.default:
        return No("its mask is in memory before it is expanded", small)
    return mask, expanded


def _attention(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return aten._scaled_dot_product_efficient_attention(q, q, q, mask.expand(2, 4, 8, 8), False)[0]  # type: ignore[no-any-return]


@store_small_masks.example
def one_mask_for_all_heads(q: torch.Tensor = f32(2, 4, 8, 16), mask: torch.Tensor = f32(2, 1, 1, 8)) -> torch.Tensor:
    return _attention(q, mask * -100.0)


@store_small_masks.refuses("in memory before it is expanded")
def mask_that_is_given(q: torch.Tensor = f32(2, 4, 8, 16), mask: torch.Tensor = f32(2, 1, 1, 8)) -> torch.Tensor:
    return _attention(q, mask)
