"""Gradients in the layout of what they are gradients of.

Whoever accumulates the gradient of a parameter copies it if it lies otherwise than the parameter, one after the other.
A transposed product costs nothing: the transposed factors are multiplied the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.graph.reading.bind import Bound, bind
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import is_row_major, known_equal, output_of, value_of
from eductor.graph.view import GraphView

aten = torch.ops.aten


def lay_out_gradients(module: GraphModule, wanted: Sequence[int]) -> None:
    """Computes products transposed that are transposed on their way out; `wanted` are the inputs of the gradients."""
    gradients = _gradients(module, wanted)
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


def drop_turned_copies(module: GraphModule, wanted: Sequence[int]) -> None:
    """Drops copies of gradients that are transposed, and transposed back on their way out.

    A pass that computes a value in another way makes them: it knows how the old one lay, not that nobody relies on it.
    """
    gradients = _gradients(module, wanted)
    turned = {g: t for g, x in gradients.items() if (t := _turned_back(g)) is not None and is_row_major(value_of(x))}
    if not turned:
        return
    view = GraphView(module)
    rewrite = Rewriter(view, "autograd/layouts")
    for gradient, (source, shape) in turned.items():
        if view.effects.may_alias(gradient, source):
            rewrite.replace(gradient, aten.view.default, source, shape)
    rewrite.finish()


def _gradients(module: GraphModule, wanted: Sequence[int]) -> dict[Node, Node]:
    """The input of each gradient."""
    outputs = output_of(module)
    inputs = module.graph.find_nodes(op="placeholder")
    return dict(zip(outputs[len(outputs) - len(wanted) :], (inputs[i] for i in wanted), strict=True))


def _turned_back(gradient: Node | None) -> tuple[Node, list[Any]] | None:
    """What is transposed, copied, divided into batches and transposed back to be a gradient, and the gradient's shape."""
    view = _operand(gradient) if gradient is not None and _swaps(gradient) else None
    bound = bind(view) if view is not None else None
    if gradient is None or view is None or not isinstance(bound, Bound) or bound.op is not aten.view.default:
        return None
    copy = _operand(view)
    if copy.target is not aten.clone.default or not _swaps(turned := _operand(copy)):
        return None
    source, (*batches, rows, columns) = _operand(turned), bound["size"]
    is_alone = all(len(node.users) == 1 for node in (gradient, view, copy))
    same = known_equal(value_of(view).shape[-2:], value_of(turned).shape[-2:]) and is_row_major(value_of(source))
    return (source, [*batches, columns, rows]) if is_alone and same else None


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
    """Whether a node exchanges the last two of at least three dimensions."""
    bound = bind(node)
    if not isinstance(bound, Bound) or bound.packet not in (aten.permute, aten.transpose) or (n := _rank(node)) < 3:
        return False
    if bound.packet is aten.permute:
        return [d % n for d in bound["dims"]] == [*range(n - 2), n - 1, n - 2]
    return {bound["dim0"] % n, bound["dim1"] % n} == {n - 2, n - 1}


def _rank(node: Node) -> int:
    return int(value_of(node).dim())


def _swapped(rewrite: Rewriter, node: Node, before: Node) -> Node:
    return _operand(node) if _swaps(node) else rewrite.insert(aten.permute.default, node, [0, 2, 1], before=before)


def _operand(node: Node) -> Node:
    operand = node.args[0]
    assert isinstance(operand, Node)
    return operand
