"""Replaces a linear between two transposes, with its bias and relu, by one kernel (linear compression of embeddings)."""

# ruff: noqa: N802, N999 - the documented name

from __future__ import annotations

import torch
import torch.nn.functional as F

from eductor.graph import GraphView, No, Rewriter
from eductor.passes.pre_grad.products.compress import LCE_OPERATORS, read_lce, replace_by_kernel, with_relu
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def use_triton_lce_replace_normal_LCE(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a linear between two transposes, with its bias and relu, by one kernel (linear compression of embeddings).

    It is off by default: no other kernel can be fused with this one, so measure before you enable it.

    It pays on CUDA, where transposed copies of the embeddings take longer than the product.
    """
    for node in graph.find(*LCE_OPERATORS):
        found = read_lce(graph, node)
        if found is None:
            continue
        if isinstance(found, No):
            rewrite.reject(found, node)
            continue
        found = with_relu(graph, found)
        if found.bias is None and not found.relu and not found.reshaped:
            rewrite.reject("it has no bias, no relu and no flattened rows: the simple pass replaces it", node)
        else:
            replace_by_kernel(graph, rewrite, found)


@use_triton_lce_replace_normal_LCE.example
def with_bias_and_relu(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    return F.linear(x.transpose(1, 2), w, b).transpose(1, 2).relu().reshape(4, 18)


@use_triton_lce_replace_normal_LCE.example
def flattened_rows(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    rows = F.linear(x.permute(0, 2, 1).reshape(-1, 8), w)
    return rows.view(4, 6, 3).permute(0, 2, 1).sum(2)


@use_triton_lce_replace_normal_LCE.refuses("the simple pass replaces it")
def without_bias(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x.mT, w).mT.flatten(1)


@use_triton_lce_replace_normal_LCE.refuses("a barrier separates")
def without_gradients(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    with torch.no_grad():
        rows = F.linear(x.mT, w, b)
    return rows.mT.flatten(1) + x.sum()


@use_triton_lce_replace_normal_LCE.refuses("observable outside")
def result_that_is_returned(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    return F.linear(x.mT, w, b).mT.relu()
