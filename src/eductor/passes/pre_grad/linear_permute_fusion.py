"""Replaces a transposed linear by a product with the weight on the left, which needs no transpose."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor.graph import Bound, GraphView, Rewriter, requires_grad, tensor_of, value_of
from eductor.passes.pre_grad.products.compress import (
    are_of_one_kind,
    have_no_other_users,
    insert_product,
    may_be_product,
    undisturbed,
)
from eductor.passes.pre_grad.products.swaps import SWAPS, swapped
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def linear_permute_fusion(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a transposed linear by a product with the weight on the left, which needs no transpose.

    It is off by default: a product for each sample is slower than one for all, and its gradient of the weight is summed
    over samples.

    It pays only where a user would copy the transposed result.
    """
    for node in graph.find(*SWAPS):
        linear = swapped(node)
        bound = graph.bind(linear) if linear is not None else None
        if linear is not None and isinstance(bound, Bound) and bound.packet is aten.linear:
            _replace(graph, rewrite, node, linear, bound)


def _replace(graph: GraphView, rewrite: Rewriter, node: Node, linear: Node, bound: Bound) -> None:
    x, weight, bias = bound["input"], bound["weight"], bound["bias"]
    tensor, matrix = tensor_of(x), tensor_of(weight)
    operands = [n for n in (x, weight, bias) if n is not None]
    if tensor is None or tensor.dim() < 2 or matrix is None or matrix.dim() != 2:
        rewrite.reject("its input or its weight is not a matrix", node)
    elif not (
        verdict := (
            are_of_one_kind(*operands, linear)
            and have_no_other_users((linear, node))
            and undisturbed(graph, linear, node, operands)
            and may_be_product(graph, node, operands)
        )
    ):
        rewrite.reject(verdict, node)
    else:
        transposed = swapped(x)
        if transposed is None or requires_grad(value_of(transposed)) != requires_grad(value_of(x)):
            transposed = rewrite.insert(aten.transpose.int, x, -2, -1, before=linear)
        rewrite.replace(node, insert_product(rewrite, weight, transposed, bias, before=node))


@linear_permute_fusion.example
def transposed_result(
    x: torch.Tensor = f32(4, 6, 8), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    return F.linear(x, w, b).permute(0, 2, 1).flatten(1)


@linear_permute_fusion.example
def matrices(x: torch.Tensor = f32(6, 8), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x, w).t().contiguous()


@linear_permute_fusion.refuses("also used by")
def linear_that_is_used(x: torch.Tensor = f32(4, 6, 8), w: torch.Tensor = f32(3, 8)) -> tuple[torch.Tensor, ...]:
    rows = F.linear(x, w)
    return rows.mT.flatten(1), rows.sum()


@linear_permute_fusion.refuses("observable outside")
def result_that_is_returned(x: torch.Tensor = f32(4, 6, 8), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x, w).transpose(-1, -2)
