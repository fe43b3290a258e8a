"""Multiplies a transposed input in its own layout, where a linear would copy it to make one matrix of all samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor.graph import Bound, GraphView, Rewriter, tensor_of
from eductor.passes.pre_grad.products.compress import are_of_one_kind, insert_expanded, may_be_product
from eductor.passes.pre_grad.products.swaps import swapped
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def permute_linear_fusion(graph: GraphView, rewrite: Rewriter) -> None:
    """Multiplies a transposed input in its own layout, where a linear would copy it to make one matrix of all samples.

    It is off by default: a product for each sample saves the copy, but its gradient of the weight is summed over
    samples.

    It pays where the input is large and the weight small, so that the copy takes most of the time.
    """
    for node in graph.find(aten.linear):
        bound = graph.bind(node)
        if isinstance(bound, Bound) and isinstance(bound["input"], Node) and swapped(bound["input"]) is not None:
            _replace(graph, rewrite, node, bound)


def _replace(graph: GraphView, rewrite: Rewriter, node: Node, bound: Bound) -> None:
    x, weight, bias = bound["input"], bound["weight"], bound["bias"]
    tensor, matrix = tensor_of(x), tensor_of(weight)
    if tensor is None or tensor.dim() < 3 or matrix is None or matrix.dim() != 2:
        rewrite.reject("a matrix is multiplied without a copy anyway", node)
    elif not (alike := are_of_one_kind(x, weight, bias, node)):
        rewrite.reject(alike, node)
    elif len(x.users) > 1:
        rewrite.reject(f"{x.name} is used elsewhere", x)
    elif not (verdict := may_be_product(graph, node, (x, weight, bias))):
        rewrite.reject(verdict, node)
    else:
        transposed = rewrite.insert(aten.transpose.int, weight, 0, 1, before=node)
        product = rewrite.insert(aten.matmul, x, insert_expanded(rewrite, transposed, x, node), before=node)
        rewrite.replace(node, product if bias is None else rewrite.insert(aten.add, product, bias, before=node))


@permute_linear_fusion.example
def transposed_input(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    return F.linear(x.permute(0, 2, 1), w, b)


@permute_linear_fusion.refuses("a matrix is multiplied")
def transposed_matrix(x: torch.Tensor = f32(8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x.t(), w)


@permute_linear_fusion.refuses("is used elsewhere")
def shared_input(
    x: torch.Tensor = f32(4, 8, 6), v: torch.Tensor = f32(3, 8), w: torch.Tensor = f32(3, 8)
) -> torch.Tensor:
    rows = x.mT
    return F.linear(rows, v) * F.linear(rows, w)
