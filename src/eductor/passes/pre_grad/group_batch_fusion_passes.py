"""Fuses independent calls of the same form into one call with a batch dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from eductor.graph import GraphView, Rewriter
from eductor.passes.batching import RULES
from eductor.passes.batching.rounds import chosen, make_batches
from eductor.passes.batching.shared_input import fuse_shared_inputs
from eductor.pipeline.base import Context, f32, graph_pass

SHARED_INPUT = "batch_linear_lhs"


@graph_pass(stage="pre_grad", numerics="reassociates")
def group_batch_fusion_passes(
    graph: GraphView, rewrite: Rewriter, context: Context, *, without: Sequence[str] = ()
) -> None:
    """Fuses independent calls of the same form into one call with a batch dimension.

    Linears of different inputs become a batched matrix product, layer norms one layer norm, pointwise operators keep
    the batch dimension; linears of one input become one wider linear. Parallel chains of such calls become one chain.
    Rules: `batch_linear`, `batch_linear_lhs`, `batch_layernorm`, `batch_tanh`, `batch_sigmoid`, `batch_relu`,
    `batch_detach`, `batch_nan_to_num`, `batch_clamp`, `batch_dropout`, `batch_add`, `batch_sub`, `batch_mul`,
    `batch_div`, `batch_pointwise`. Rules that `without` names are left out.

    It pays where the launches that are saved, forward and backward, outweigh what stacking costs on the device.
    """
    rules = chosen(RULES, without, SHARED_INPUT)
    while make_batches(graph, rewrite, context, rules) or _widen(graph, rewrite, context, SHARED_INPUT not in without):
        pass


def _widen(graph: GraphView, rewrite: Rewriter, context: Context, is_on: bool) -> bool:
    """Fuses the remaining linears of one input; returns whether there were any."""
    with rewrite.rule(SHARED_INPUT):
        return is_on and fuse_shared_inputs(graph, rewrite, context)


@group_batch_fusion_passes.example
def gated_features(
    x: torch.Tensor = f32(4, 32), w: torch.Tensor = f32(16, 8, 8), b: torch.Tensor = f32(8)
) -> torch.Tensor:
    pieces = x.split(8, 1)
    values = [torch.tanh(F.linear(piece, w[i], b)) for i, piece in enumerate(pieces)]
    gates = [torch.sigmoid(F.linear(piece, w[8 + i], b)) for i, piece in enumerate(pieces)]
    return torch.cat([F.layer_norm(v * g, [8]) for v, g in zip(values, gates, strict=True)], 1)


@group_batch_fusion_passes.refuses("does not pay for making one")
def separate_inputs(x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tanh(x), torch.tanh(y)


@group_batch_fusion_passes.refuses("no other call has the same form")
def linear_after_linear(x: torch.Tensor = f32(4, 8), w: torch.Tensor = f32(8, 8)) -> torch.Tensor:
    return F.linear(F.linear(x, w), w)


@group_batch_fusion_passes.refuses("draws random numbers")
def dropout_that_drops(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x.chunk(2, 1)
    return F.dropout(a, 0.5), F.dropout(b, 0.5)
