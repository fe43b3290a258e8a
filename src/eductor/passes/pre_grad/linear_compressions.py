"""The linear compression of embeddings (LCE), a linear between two transposes: as one kernel, or as a matmul."""

# ruff: noqa: N802 - the documented names

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from eductor.graph import GraphView, No, Rewriter
from eductor.passes.pre_grad.compressions import (
    LCE_OPERATORS,
    Compress,
    insert_product,
    may_be_product,
    read_lce,
    replace_by_kernel,
    with_relu,
)
from eductor.pipeline.base import f32, f64, graph_pass

aten = torch.ops.aten


def _compressions(graph: GraphView, rewrite: Rewriter) -> Iterator[Compress]:
    """The compressions of a graph; calls that almost are one are rejected with a reason."""
    for node in graph.find(*LCE_OPERATORS):
        found = read_lce(graph, node)
        if isinstance(found, No):
            rewrite.reject(found, node)
        elif found is not None:
            yield found


# ------------------------------------------------------------------------------------------------------ as one kernel


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def use_triton_lce_replace_simple_LCE(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a linear without bias between two transposes by one kernel (linear compression of embeddings).

    It is off by default: no other kernel can be fused with this one, so measure before you enable it.

    It pays on CUDA, where transposed copies of the embeddings take longer than the product.
    """
    for found in _compressions(graph, rewrite):
        if found.bias is not None or found.reshaped or with_relu(graph, found).relu:
            rewrite.reject("it has a bias, a relu or flattened rows: the normal pass replaces it", found.output)
        else:
            rewrite.record(replace_by_kernel(graph, rewrite, found), found.output)


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


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def use_triton_lce_replace_normal_LCE(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a linear between two transposes, with its bias and relu, by one kernel (linear compression of embeddings).

    It is off by default: no other kernel can be fused with this one, so measure before you enable it.

    It pays on CUDA, where transposed copies of the embeddings take longer than the product.
    """
    for compress in _compressions(graph, rewrite):
        found = with_relu(graph, compress)
        if found.bias is None and not found.relu and not found.reshaped:
            rewrite.reject("it has no bias, no relu and no flattened rows: the simple pass replaces it", found.output)
        else:
            rewrite.record(replace_by_kernel(graph, rewrite, found), found.output)


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


# -------------------------------------------------------------------------------------------------------- as a matmul


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def use_matmul_lce_replace_normal_LCE(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a linear between two transposes by a matmul with the weight on the left (linear compression of embeddings).

    It is off by default: a product for each sample reads the embeddings without a copy, but its gradient of the weight
    is summed over samples.

    It pays where the embeddings are many and the results few.
    """
    for found in _compressions(graph, rewrite):
        if verdict := may_be_product(graph, found.output, found.operands):
            product = insert_product(rewrite, found.weight, found.x, found.bias, before=found.output)
            rewrite.replace(
                found.output, rewrite.insert(aten.relu, product, before=found.output) if found.relu else product
            )
        else:
            rewrite.reject(verdict, found.output)


@use_matmul_lce_replace_normal_LCE.example
def matmul_between_transposes(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    return F.linear(x.transpose(1, 2), w, b).transpose(1, 2).flatten(1)


@use_matmul_lce_replace_normal_LCE.example
def matmul_of_flattened_rows(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    rows = F.linear(x.permute(0, 2, 1).reshape(-1, 8), w, b).relu()
    return rows.reshape(4, 6, 3).permute(0, 2, 1).sum(2)


@use_matmul_lce_replace_normal_LCE.refuses("observable outside")
def matmul_that_is_returned(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x.mT, w).mT


@use_matmul_lce_replace_normal_LCE.refuses("also used by")
def rows_that_are_used(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> tuple[torch.Tensor, ...]:
    rows = F.linear(x.mT, w)
    return rows.mT.flatten(1), rows.sum()


@use_matmul_lce_replace_normal_LCE.refuses("does not exchange its last two dims")
def one_transpose(x: torch.Tensor = f32(4, 6, 8), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x, w).mT.flatten(1)
