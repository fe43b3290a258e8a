"""Adds the bias of a matrix product where its result is read, in the same kernel as what follows."""

from __future__ import annotations

from typing import Literal

import torch
from torch.fx import Node

from eductor.cost import device_of
from eductor.graph.no import No
from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import is_row_major, tensor_of
from eductor.graph.view import GraphView
from eductor.passes.post_grad.products import are_alike, fuses_into_users, is_expandable
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="reassociates")
def unfuse_bias_add(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Adds the bias of a matrix product where its result is read, in the same kernel as what follows.

    Only where the engine fuses and all that reads the result is computed element by element. Half precisions stay:
    their product would be rounded before the sum.

    It pays since `addmm` reads its result once more, or fills it with the bias first.
    """
    for node in graph.find(aten.addmm):
        bound = graph.bind(node)
        if not isinstance(bound, Bound):
            rewrite.reject(bound, node)
            continue
        if verdict := _may_unfuse(graph, node, bound, context):
            _unfuse(rewrite, node, bound)
        else:
            rewrite.reject(verdict, node)


def _unfuse(rewrite: Rewriter, node: Node, bound: Bound) -> None:
    """`beta * bias + alpha * product`, without what is multiplied by 1 or 0."""
    product = rewrite.insert(aten.mm, bound["mat1"], bound["mat2"], before=node)
    if bound["alpha"] != 1:
        product = rewrite.insert(aten.mul.Tensor, product, bound["alpha"], before=node)
    if bound["beta"] == 0:  # which ignores the bias, even where that is no number
        rewrite.replace(node, product)
    else:
        rewrite.replace(node, aten.add.Tensor, product, bound["self"], alpha=bound["beta"])


def _may_unfuse(graph: GraphView, node: Node, bound: Bound, context: Context) -> Literal[True] | No:
    result = tensor_of(node)
    if result is None or bound.op is not aten.addmm.default:
        return No("it asks for a dtype of its own")
    if not device_of(result.device, context.options).fuses:
        return No("without fusing, the sum would be a kernel of its own")
    if result.dtype.is_floating_point and torch.finfo(result.dtype).bits <= 16:
        return No(f"the product would be rounded to {result.dtype} before the sum")
    if not all(type(bound[name]) in (int, float) for name in ("alpha", "beta")):
        return No("it is scaled by what is no number")
    if bound["alpha"] == 0:
        return No("with alpha=0 it ignores the product, even where that is no number")
    if not (alike := are_alike(node, bound["self"], bound["mat1"], bound["mat2"])):
        return alike
    if not is_expandable(bound["self"], result) or not is_row_major(result):
        return No("the bias is not known to have the shape of the result, or the result lies otherwise in memory")
    if any(x is bound["self"] for x in (bound["mat1"], bound["mat2"])) or not _lies_plainly(bound["self"]):
        return No("the sum would lie in memory as its bias does")
    if graph.effects.leaves(node):
        return No("its result leaves the graph")
    return True if fuses_into_users(graph, node) else No("not all that reads it fuses with it")


def _lies_plainly(bias: Node) -> bool:
    value = tensor_of(bias)
    return value is not None and (value.dim() < 2 or is_row_major(value))


@unfuse_bias_add.example
def linear_and_relu(
    bias: torch.Tensor = f32(5), a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5)
) -> torch.Tensor:
    return torch.addmm(bias, a, b).relu()


@unfuse_bias_add.example
def scaled(bias: torch.Tensor = f32(4, 1), a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5)) -> torch.Tensor:
    return torch.addmm(bias, a, b, beta=0.5, alpha=-2.0).view(2, 10).tanh()


@unfuse_bias_add.refuses("its result leaves the graph")
def returned(bias: torch.Tensor = f32(5), a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5)) -> torch.Tensor:
    return torch.addmm(bias, a, b)


@unfuse_bias_add.refuses("not all that reads it fuses")
def another_product(
    bias: torch.Tensor = f32(5), a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5)
) -> torch.Tensor:
    return torch.addmm(bias, a, b) @ b.t()
