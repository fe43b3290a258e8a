"""Computes products transposed whose transpositions are gradients."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph import GraphView, No, Rewriter, is_row_major, value_of
from eductor.passes.joint.gradients import accumulated_gradients, operand_of, swaps_rows_and_columns
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="joint", numerics="reassociates", restrides=True)
def lay_out_gradients(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Computes products transposed whose transpositions are gradients of parameters.

    Gradients of other inputs keep eager's strides; those of parameters show others only to `torch.autograd.grad`.

    It pays where weights are stacked for a batched product: a gradient with other strides than its parameter is copied
    when it is accumulated, one parameter after the other. A transposed product costs nothing: the transposed factors are
    multiplied in the other order.
    """
    gradients = accumulated_gradients(graph, context)
    turned = {
        node: None
        for gradient, given in gradients.items()
        if (node := _turned_product(gradient)) is not None and is_row_major(value_of(given))
    }
    for node in graph.candidates(turned):
        product = operand_of(node)
        read_elsewhere = _reader_elsewhere(node, product, gradients)
        if read_elsewhere is not None:
            rewrite.reject(read_elsewhere, node)
            continue
        left, right = (_swapped(rewrite, x, before=product) for x in product.all_input_nodes)
        rewrite.replace(node, aten.bmm, right, left)


def _turned_product(gradient: Node) -> Node | None:
    """The transposition of a batched product that a gradient is, or is a part of."""
    while gradient.target is aten.select.int:
        gradient = operand_of(gradient)
    is_turned = swaps_rows_and_columns(gradient) and operand_of(gradient).target is aten.bmm.default
    return gradient if is_turned else None


def _reader_elsewhere(node: Node, product: Node, gradients: dict[Node, Node]) -> No | None:
    """Who reads a product, or its transposition, besides gradients that leave the graph."""
    other = next((user for user in product.users if user is not node), None)
    if other is not None:
        return No("its product is read as it is", other)
    other = next((user for user in node.users if not _is_given_out(user, gradients)), None)
    return None if other is None else No("it is read by more than gradients", other)


def _is_given_out(node: Node, gradients: dict[Node, Node]) -> bool:
    """Whether a value is only there for gradients that leave the graph."""
    if node.op == "output":
        return True
    return node.target is aten.select.int and all(user.op == "output" for user in node.users) and node in gradients


def _swapped(rewrite: Rewriter, node: Node, before: Node) -> Node:
    if swaps_rows_and_columns(node):
        return operand_of(node)
    return rewrite.insert(aten.permute.default, node, [0, 2, 1], before=before)


@lay_out_gradients.example(context={"gradients": (0,), "parameters": {0}})
def gradient_of_a_batch_of_weights(
    w: torch.Tensor = f32(2, 5, 4), x: torch.Tensor = f32(2, 3, 4), tangent: torch.Tensor = f32(2, 3, 5)
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.bmm(x, w.mT), torch.bmm(x.mT, tangent).mT


@lay_out_gradients.refuses("its product is read as it is", context={"gradients": (0,), "parameters": {0}})
def product_that_is_summed(
    w: torch.Tensor = f32(2, 5, 4), x: torch.Tensor = f32(2, 3, 4), tangent: torch.Tensor = f32(2, 3, 5)
) -> tuple[torch.Tensor, torch.Tensor]:
    product = torch.bmm(x.mT, tangent)
    return product.sum(), product.mT


@lay_out_gradients.refuses("it is read by more than gradients", context={"gradients": (0,), "parameters": {0}})
def gradient_that_is_summed(
    w: torch.Tensor = f32(2, 5, 4), x: torch.Tensor = f32(2, 3, 4), tangent: torch.Tensor = f32(2, 3, 5)
) -> tuple[torch.Tensor, torch.Tensor]:
    gradient = torch.bmm(x.mT, tangent).mT
    return gradient.sum(), gradient
