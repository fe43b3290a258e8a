"""Leaves a cat of many inputs of the graph to ATen's kernel."""

from __future__ import annotations

import torch

from eductor.graph import Bound, GraphView, Rewriter
from eductor.ops.copies import wide_cat
from eductor.pipeline.base import f32, graph_pass

WIDE = 32
"""From so many operands on, a generated kernel takes longer to make and to launch than a call."""


@graph_pass(stage="lower", numerics="exact")
def call_wide_cats(graph: GraphView, rewrite: Rewriter) -> None:
    """Leaves a cat of many inputs of the graph to ATen's kernel.

    It pays where weights are stacked for a batched product: nothing fuses into such a cat.
    """
    for node in graph.find(torch.ops.aten.cat):
        bound = graph.bind(node)
        if not isinstance(bound, Bound):
            rewrite.reject(bound.reason, node)
        elif len(bound["tensors"]) < WIDE:
            rewrite.reject(f"it has fewer than {WIDE} operands", node)
        elif any(operand.op != "placeholder" for operand in bound["tensors"]):
            rewrite.reject("an operand is computed in the graph, and fuses into the cat", node)
        else:
            rewrite.replace(node, wide_cat.default, bound["tensors"], bound["dim"])


@call_wide_cats.example
def many_rows(x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat([x, y] * 16) * 2


@call_wide_cats.refuses("fewer than 32 operands")
def two_rows(x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat([x, y]) * 2


@call_wide_cats.refuses("an operand is computed")
def computed_rows(x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat([x, y.sin()] * 16) * 2
