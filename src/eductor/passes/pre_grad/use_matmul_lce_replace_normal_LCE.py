"""Replaces a linear between two transposes by a matmul with the weight on the left (linear compression of embeddings)."""

# ruff: noqa: N802, N999 - the documented name

from __future__ import annotations

import torch
import torch.nn.functional as F

from eductor.graph import GraphView, No, Rewriter
from eductor.passes.pre_grad.products.compress import LCE_OPERATORS, Compress, insert_product, may_be_product, read_lce
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def use_matmul_lce_replace_normal_LCE(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a linear between two transposes by a matmul with the weight on the left (linear compression of embeddings).

    It is off by default: a product for each sample reads the embeddings without a copy, but its gradient of the weight
    is summed over samples.

    It pays where the embeddings are many and the results few.
    """
    for node in graph.find(*LCE_OPERATORS):
        found = read_lce(graph, node)
        if isinstance(found, No):
            rewrite.reject(found, node)
        elif found is not None:
            _replace(graph, rewrite, found)


def _replace(graph: GraphView, rewrite: Rewriter, found: Compress) -> None:
    if not (verdict := may_be_product(graph, found.output, found.operands)):
        rewrite.reject(verdict, found.output)
        return
    new = insert_product(rewrite, found.weight, found.x, found.bias, before=found.output)
    if found.relu:
        new = rewrite.insert(aten.relu, new, before=found.output)
    rewrite.replace(found.output, new)


@use_matmul_lce_replace_normal_LCE.example
def between_transposes(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    return F.linear(x.transpose(1, 2), w, b).transpose(1, 2).flatten(1)


@use_matmul_lce_replace_normal_LCE.example
def flattened_rows(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    rows = F.linear(x.permute(0, 2, 1).reshape(-1, 8), w, b).relu()
    return rows.reshape(4, 6, 3).permute(0, 2, 1).sum(2)


@use_matmul_lce_replace_normal_LCE.refuses("observable outside")
def result_that_is_returned(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x.mT, w).mT


@use_matmul_lce_replace_normal_LCE.refuses("also used by")
def rows_that_are_used(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> tuple[torch.Tensor, ...]:
    rows = F.linear(x.mT, w)
    return rows.mT.flatten(1), rows.sum()


@use_matmul_lce_replace_normal_LCE.refuses("does not exchange its last two dims")
def one_transpose(x: torch.Tensor = f32(4, 6, 8), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x, w).mT.flatten(1)
