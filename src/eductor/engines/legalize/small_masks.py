"""Masks of attention that are the same for many queries or heads: stored once, not once for each."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.ops.stored import stored

aten = torch.ops.aten

_KERNELS = (
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention,
    aten._scaled_dot_product_cudnn_attention_backward,
)
"""Those that read an expanded mask as it is; for others, Inductor copies it."""


def store_small_masks(rewrite: Rewriter) -> None:
    """Keeps a mask that is computed and then expanded for a kernel from being computed in its expanded form."""
    for node in rewrite.view.find(*_KERNELS):
        bound = rewrite.view.bind(node)
        mask = bound["attn_bias"] if isinstance(bound, Bound) else None
        expanded = rewrite.view.bind(mask) if isinstance(mask, Node) else None
        if not isinstance(mask, Node) or not isinstance(expanded, Bound) or expanded.packet is not aten.expand:
            continue
        small = expanded["self"]
        if small.op == "call_function" and small.target is not stored.default:
            kept = rewrite.insert(stored.default, small, before=mask)
            rewrite.replace(mask, aten.expand, kept, expanded["size"])
