"""Replaces a compressed dot interaction, `x @ (w @ x)^T`, by one kernel, which does not write the products of all pairs."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, bind, known_equal, tensor_of
from eductor.ops.dot_compress import dot_compress
from eductor.ops.launching import KERNEL_DTYPES
from eductor.passes.pre_grad.compressions import (
    Compress,
    are_of_one_kind,
    have_no_other_users,
    may_be_product,
    rank_of,
    read_lce,
    swapped,
    undisturbed,
)
from eductor.pipeline.base import f32, f64, graph_pass

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def use_triton_dot_compress(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a compressed dot interaction, `x @ (w @ x)^T`, by one kernel, which does not write the products of all pairs.

    It is off by default: no other kernel can be fused with this one, so measure before you enable it. The operator runs
    its kernel on CUDA, and batched matmuls on other devices.

    It pays on CUDA, where the products of all pairs would fill memory.
    """
    for node in graph.find(aten.bmm, aten.matmul, aten.linear):
        product = _product(node)
        if product is None:
            continue
        if _is_of_pairs(graph, node, *product):
            rewrite.reject("the products of all pairs come first, and in another order infinities would differ", node)
            continue
        found = None if graph.is_call(node, aten.linear) else _compressed(graph, product[1])
        if found is None or found.x is not product[0]:
            continue
        if verdict := _may_compress(graph, node, found):
            rewrite.replace(node, dot_compress.default, found.x, found.weight)
        else:
            rewrite.reject(verdict, node)


def _product(node: Any) -> tuple[Node, Node] | None:
    """The operands of a matrix product; those of a linear without bias are its input and its weight, not transposed."""
    bound = bind(node) if isinstance(node, Node) else None
    if not isinstance(bound, Bound):
        return None
    if bound.packet in (aten.bmm, aten.matmul):
        return bound["self"], bound.get("mat2", bound.get("other"))
    return (bound["input"], bound["weight"]) if bound.packet is aten.linear and bound["bias"] is None else None


def _compressed(graph: GraphView, right: Node) -> Compress | None:
    """The compression, without bias and relu, of which a value is the transposed result."""
    product = _product(right)
    if product is not None and graph.is_call(right, aten.linear):
        x = swapped(product[0])
        return Compress(right, product[1], x, start=product[0]) if x is not None else None
    end = swapped(right)
    if end is None:
        return None
    found = read_lce(graph, end)
    if isinstance(found, Compress):
        is_plain = found.bias is None and not found.relu
        return Compress(right, found.weight, found.x, inner=found.nodes, start=found.start) if is_plain else None
    product = _product(end)
    if product is not None and not graph.is_call(end, aten.linear) and rank_of(product[0]) == 2:
        return Compress(right, *product, inner=(end,))
    return None


def _is_of_pairs(graph: GraphView, node: Node, pairs: Node, right: Node) -> bool:
    """Whether a product is `linear(x @ x.mT, w)`, or `(x @ x.mT) @ w.T`, which is the same interaction."""
    product = _product(pairs)
    is_compressed = graph.is_call(node, aten.linear) or (rank_of(right) == 2 and swapped(right) is not None)
    return (
        is_compressed
        and product is not None
        and not graph.is_call(pairs, aten.linear)
        and swapped(product[1]) is product[0]
    )


def _may_compress(graph: GraphView, node: Node, found: Compress) -> Literal[True] | No:
    x, weight = tensor_of(found.x), tensor_of(found.weight)
    if x is None or weight is None:
        return No("the values of its operands are not known")
    if x.dim() != 3 or weight.dim() != 2 or not known_equal(weight.shape[1], x.shape[1]):
        return No("the features do not have three dims, or the weight is not a matrix over them")
    if x.dtype not in KERNEL_DTYPES:
        return No("its kernel supports only float32, float16 and bfloat16")
    return (
        are_of_one_kind(found.x, found.weight, node)
        and have_no_other_users((*found.nodes, node))
        and undisturbed(graph, found.start or found.nodes[0], node, found.operands)
        and may_be_product(graph, node, found.operands)
    )


@use_triton_dot_compress.example
def with_compressed_features(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    compressed = F.linear(x.permute(0, 2, 1), w).permute(0, 2, 1)
    return torch.bmm(x, compressed.permute(0, 2, 1)).flatten(1)


@use_triton_dot_compress.example
def by_two_products(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return x @ F.linear(x.mT, w)


@use_triton_dot_compress.refuses("another order")
def by_all_pairs(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(torch.bmm(x, x.transpose(1, 2)), w)


@use_triton_dot_compress.refuses("also used by")
def compressed_features_that_are_used(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)
) -> tuple[torch.Tensor, torch.Tensor]:
    compressed = F.linear(x.mT, w)
    return x @ compressed, compressed.sum()


@use_triton_dot_compress.refuses("its kernel supports only")
def in_double_precision(x: torch.Tensor = f64(4, 8, 6), w: torch.Tensor = f64(3, 8)) -> torch.Tensor:
    return x @ F.linear(x.mT, w)
