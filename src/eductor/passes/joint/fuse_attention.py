"""Replaces hand-written attention by one fused kernel, forward and backward."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch.fx import Node

from eductor.graph import GraphView, No, Rewriter, tensor_of
from eductor.passes.joint.attention import ANCHORS, Attention, recognize, regions, softmax_at
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.regions.replace_region import replace_region


@graph_pass(stage="joint", numerics="reassociates", finite_only=True)
def fuse_attention(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Replaces hand-written attention by one fused kernel, forward and backward.

    The search begins at the softmax, whole or decomposed, and goes up to the product of query and key and down to the
    product with the value, through scales, masks, casts, views and dropout in any order. The scores are never
    materialized, so memory grows with the length of the sequence, not with its square. A query that sees no key has
    eager's result, NaN or the mean of the values, and so have the gradients. As in torch's own attention, the numbers of
    query, key and value must be finite: a masked one that is not still reaches the result, and gradients show only a part
    of the NaN that eager's would. On a CPU, attention with dropout or with fewer than 16 keys is left as it is: torch has
    no kernel for the one, and that for the other hides NaN.

    It pays more the longer the sequences are: in time, and above all in memory of training.
    """
    for anchor in graph.find(*ANCHORS):
        softmax = softmax_at(graph, anchor)
        if softmax is None:
            continue
        found = recognize(graph, softmax)
        if isinstance(found, No):
            rewrite.reject(found, anchor)
            continue
        verdict = _may_fuse(found, context)
        if not verdict:
            rewrite.reject(verdict, anchor)
            continue
        replaced: Literal[True] | No = No("none of its inputs has one of its symbolic sizes")
        for region, fused in regions(graph, found, training=not context.is_inference):
            replaced = replace_region(graph, rewrite, region, fused)
            if replaced:
                break
        if not replaced:
            rewrite.reject(replaced, anchor)


def _may_fuse(found: Attention, context: Context) -> Literal[True] | No:
    if found.dropout and context.options.fallback_random:
        return No("the option fallback_random asks for eager's random numbers, and the kernel draws its own")
    if context.options.round_intermediates and any(_is_half(o.node) for o in found.operands):
        return No(
            "the option round_intermediates asks for scores in half precision, and the kernel has them in float32"
        )
    return True


def _is_half(node: Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dtype in (torch.float16, torch.bfloat16)


@fuse_attention.example
def scaled(
    q: torch.Tensor = f32(2, 4, 16, 8), k: torch.Tensor = f32(2, 4, 16, 8), v: torch.Tensor = f32(2, 4, 16, 8)
) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(16), -1) @ v


@fuse_attention.example
def added_mask(
    q: torch.Tensor = f32(2, 4, 16, 8),
    k: torch.Tensor = f32(2, 4, 20, 8),
    v: torch.Tensor = f32(2, 4, 20, 8),
    mask: torch.Tensor = f32(2, 1, 16, 20),
) -> torch.Tensor:
    return torch.softmax(mask + q @ k.transpose(-2, -1) * 0.25, -1) @ v


@fuse_attention.example
def causal(
    q: torch.Tensor = f32(2, 16, 4, 8), k: torch.Tensor = f32(2, 16, 4, 8), v: torch.Tensor = f32(2, 16, 4, 8)
) -> torch.Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
    past = torch.ones(16, 16, dtype=torch.bool).tril()
    weights = scores.masked_fill(~past, -math.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


@fuse_attention.refuses("does not run over")
def softmax_over_the_queries(
    q: torch.Tensor = f32(2, 4, 16, 8), k: torch.Tensor = f32(2, 4, 16, 8), v: torch.Tensor = f32(2, 4, 16, 8)
) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), -2) @ v


@fuse_attention.refuses("used elsewhere")
def weights_that_are_returned(
    q: torch.Tensor = f32(2, 4, 16, 8), k: torch.Tensor = f32(2, 4, 16, 8), v: torch.Tensor = f32(2, 4, 16, 8)
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.softmax(q @ k.transpose(-2, -1), -1)
    return weights @ v, weights


@fuse_attention.refuses("an ordinary number")
def masked_scores_of_zero(
    q: torch.Tensor = f32(2, 4, 16, 8), k: torch.Tensor = f32(2, 4, 16, 8), v: torch.Tensor = f32(2, 4, 16, 8)
) -> torch.Tensor:
    past = torch.ones(16, 16, dtype=torch.bool).tril()
    return (q @ k.transpose(-2, -1)).masked_fill(~past, 0).softmax(-1) @ v
