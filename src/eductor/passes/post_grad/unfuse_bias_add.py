"""Adds the bias of a matrix product where its result is read, in the same kernel as what follows."""

from __future__ import annotations

from typing import Literal

import torch
from torch.fx import Node

from eductor.cost import device_of
from eductor.graph import GraphView, No, Rewriter, is_row_major, tensor_of, value_of
from eductor.passes.functional.products import are_alike, fuses_into_users, is_expandable
from eductor.patterns import Match, const, op, pattern_pass, var
from eductor.pipeline.base import Context, f32

aten = torch.ops.aten


@pattern_pass(stage="post_grad", numerics="reassociates")
def unfuse_bias_add() -> None:
    """Adds the bias of a matrix product where its result is read, in the same kernel as what follows.

    Only where the engine fuses and all that reads the result is computed element by element. Half precisions stay:
    their product would be rounded before the sum.

    It pays since `addmm` reads its result once more, or fills it with the bias first.
    """


def check(match: Match, *, graph: GraphView, context: Context) -> Literal[True] | No:
    """Whether the product and the sum may be apart, and the sum costs no kernel of its own."""
    node, bias, alpha, beta = match.output, match["bias"], match["alpha"], match["beta"]
    result = value_of(node)
    if not device_of(result.device, context.options).fuses:
        return No("without fusing, the sum would be a kernel of its own")
    if result.dtype.is_floating_point and torch.finfo(result.dtype).bits <= 16:
        return No(f"the product would be rounded to {result.dtype} before the sum")
    if not all(type(scale) in (int, float) for scale in (alpha, beta)):
        return No("its scale is not a number")
    if alpha == 0:
        return No("with alpha=0 it ignores the product, even where that is NaN")
    if not (alike := are_alike(node, bias, match["a"], match["b"])):
        return alike
    if not is_expandable(bias, result) or not is_row_major(result):
        return No("the bias is not known to be broadcast to the result, or the result is not row-major")
    if bias in (match["a"], match["b"]) or not _is_plain(bias):
        return No("the sum would have the memory layout of its bias")
    if graph.effects.leaves(node):
        return No("its result leaves the graph")
    return True if fuses_into_users(graph, node) else No("not all that reads it fuses with it")


def _is_plain(bias: Node) -> bool:
    value = tensor_of(bias)
    return value is not None and (value.dim() < 2 or is_row_major(value))


_PRODUCT = op(aten.addmm.default, var("bias"), var("a"), var("b"), beta=const("beta"), alpha=const("alpha"))


@unfuse_bias_add.rule(_PRODUCT, check=check)
def unfused(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    """`beta * bias + alpha * product`, without what is multiplied by 1 or 0."""
    node, alpha, beta = match.output, match["alpha"], match["beta"]
    product = rewrite.insert(aten.mm, match["a"], match["b"], before=node)
    if alpha != 1:
        product = rewrite.insert(aten.mul.Tensor, product, alpha, before=node)
    if beta == 0:  # which ignores the bias, even where that is NaN
        rewrite.replace(node, product)
    else:
        rewrite.replace(node, aten.add.Tensor, product, match["bias"], alpha=beta)


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
