"""Gradients in the layout of what they are gradients of.

Whoever accumulates the gradient of a parameter copies it if it lies otherwise than the parameter, one after the other.
A transposed product costs nothing: the transposed factors are multiplied the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from eductor.graph.bind import Bound, bind
from eductor.graph.meta import is_row_major, output_of, value_of
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView

aten = torch.ops.aten


def lay_out_gradients(module: GraphModule, wanted: Sequence[int]) -> None:
    """Computes products transposed that are transposed on their way out; `wanted` are the inputs of the gradients."""
    outputs = output_of(module)
    inputs = module.graph.find_nodes(op="placeholder")
    gradients = dict(zip(outputs[len(outputs) - len(wanted) :], (inputs[i] for i in wanted), strict=True))
    turned = [
        node for g, x in gradients.items() if (node := _turned_product(g)) is not None and is_row_major(value_of(x))
    ]
    if not turned:
        return
    rewrite = Rewriter(GraphView(module), "autograd/layouts")
    for node in dict.fromkeys(turned):
        product = _operand(node)
        if list(product.users) == [node] and all(_is_given_out(user, gradients) for user in node.users):
            left, right = (_swapped(rewrite, x, before=product) for x in product.all_input_nodes)
            rewrite.replace(node, product.target, right, left)
    rewrite.finish()


def _turned_product(gradient: Node | None) -> Node | None:
    """The transposition of a batched product that a gradient is, or is a part of."""
    while gradient is not None and gradient.target is aten.select.int:
        gradient = _operand(gradient)
    is_turned = gradient is not None and _swaps(gradient) and _operand(gradient).target is aten.bmm.default
    return gradient if is_turned else None


def _is_given_out(node: Node, gradients: dict[Node, Node]) -> bool:
    """Whether a value is only there for gradients that leave the graph."""
    if node.op == "output":
        return True
    return node.target is aten.select.int and all(user.op == "output" for user in node.users) and node in gradients


def _swaps(node: Node) -> bool:
    """Whether a node exchanges the last two of three dimensions."""
    bound = bind(node)
    if not isinstance(bound, Bound) or value_of(node).dim() != 3:
        return False
    if bound.packet is aten.permute:
        return [d % 3 for d in bound["dims"]] == [0, 2, 1]
    return bound.packet is aten.transpose and {bound["dim0"] % 3, bound["dim1"] % 3} == {1, 2}


def _swapped(rewrite: Rewriter, node: Node, before: Node) -> Node:
    return _operand(node) if _swaps(node) else rewrite.insert(aten.permute.default, node, [0, 2, 1], before=before)


def _operand(node: Node) -> Node:
    operand = node.args[0]
    assert isinstance(operand, Node)
    return operand
