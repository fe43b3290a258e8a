"""Replaces a linear without bias between two transposes by one kernel (linear compression of embeddings)."""

# ruff: noqa: N802, N999 - the documented name

from __future__ import annotations

import torch
import torch.nn.functional as F

from eductor.graph import GraphView, No, Rewriter
from eductor.passes.pre_grad.products.compress import LCE_OPERATORS, read_lce, replace_by_kernel, with_relu
from eductor.pipeline.base import f32, f64, graph_pass


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def use_triton_lce_replace_simple_LCE(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a linear without bias between two transposes by one kernel (linear compression of embeddings).

    It is off by default: no other kernel can be fused with this one, so measure before you enable it.

    It pays on CUDA, where transposed copies of the embeddings take longer than the product.
    """
    for node in graph.find(*LCE_OPERATORS):
        found = read_lce(graph, node)
        if found is None:
            continue
        if isinstance(found, No):
            rewrite.reject(found, node)
        elif found.bias is not None or found.reshaped or with_relu(graph, found).relu:
            rewrite.reject("it has a bias, a relu or flattened rows: the normal pass replaces it", node)
        else:
            replace_by_kernel(graph, rewrite, found)


@use_triton_lce_replace_simple_LCE.example
def between_transposes(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x.transpose(1, 2), w).permute(0, 2, 1).flatten(1)


@use_triton_lce_replace_simple_LCE.example
def by_einsum(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return torch.einsum("mn,bnd->bmd", w, x).sum(1)


@use_triton_lce_replace_simple_LCE.refuses("the normal pass replaces it")
def with_a_bias(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)) -> torch.Tensor:
    return F.linear(x.mT, w, b).mT.flatten(1)


@use_triton_lce_replace_simple_LCE.refuses("its kernel supports only")
def in_double_precision(x: torch.Tensor = f64(4, 8, 6), w: torch.Tensor = f64(3, 8)) -> torch.Tensor:
    return F.linear(x.mT, w).mT.flatten(1)


@use_triton_lce_replace_simple_LCE.refuses("may write what is read")
def embeddings_that_are_written(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    x = x + 1
    rows = F.linear(x.mT, w)
    x.add_(1)
    return rows.mT.flatten(1)
