"""Drops copies of gradients that are transposed, and transposed back before they leave the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_equal, value_of
from eductor.passes.joint.gradients import accumulated_gradients, operand_of, swaps_rows_and_columns
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten


@graph_pass(
    stage="joint",
    numerics="exact",
    restrides=True,
    when=lambda context: (
        context.options.profile != "exact" or No("the profile exact keeps the strides of eager's gradients")
    ),
)
def drop_transposed_gradient_copies(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Drops copies of parameters' gradients that are transposed, and transposed back before they leave the graph.

    A pass that computes a value in another way makes them: it keeps the strides of the old value. A gradient that
    accumulates into a parameter gets the strides of the parameter; only `torch.autograd.grad` shows what they were.

    It pays always: a copy less for each such gradient, and strides as those of its parameter.
    """
    for gradient, given in accumulated_gradients(graph, context).items():
        if not swaps_rows_and_columns(gradient) or operand_of(gradient).target is not aten.view.default:
            continue
        for node in graph.candidates([gradient]):
            found = _transposed_copy(graph, node, given)
            if isinstance(found, No):
                rewrite.reject(found, node)
            else:
                rewrite.replace(node, aten.view.default, *found)


def _transposed_copy(graph: GraphView, gradient: Node, given: Node) -> tuple[Node, list[Any]] | No:
    """What is transposed, copied, divided into batches and transposed back to be a gradient, and the gradient's shape."""
    if not is_row_major(value_of(given)):
        return No("the strides of its input are not those of a new tensor", given)
    view = operand_of(gradient)
    bound, copy = graph.bind(view), operand_of(view)
    if not isinstance(bound, Bound) or copy.target is not aten.clone.default:
        return No("it is no view of a copy", view)
    turned = operand_of(copy)
    if not swaps_rows_and_columns(turned):
        return No("what is copied is not transposed", turned)
    source, (*batches, rows, columns) = operand_of(turned), bound["size"]
    if any(len(node.users) > 1 for node in (gradient, view, copy)):
        return No("the copy is read by more than the gradient", copy)
    if not known_equal(value_of(view).shape[-2:], value_of(turned).shape[-2:]) or not is_row_major(value_of(source)):
        return No("its rows and columns are not those of the copy", view)
    if not graph.effects.may_alias(gradient, source):
        return No("its memory must not be that of what is copied", source)
    return source, [*batches, columns, rows]


@drop_transposed_gradient_copies.example(context={"gradients": (0,), "parameters": {0}})
def gradient_of_a_key(
    k: torch.Tensor = f32(2, 3, 4, 5), x: torch.Tensor = f32(6, 4, 5)
) -> tuple[torch.Tensor, torch.Tensor]:
    copy = x.exp().transpose(-1, -2).clone(memory_format=torch.contiguous_format)
    return x * 2, copy.view(2, 3, 5, 4).transpose(-1, -2)


@drop_transposed_gradient_copies.refuses(
    "read by more than the gradient", context={"gradients": (0,), "parameters": {0}}
)
def copy_that_is_summed(
    k: torch.Tensor = f32(2, 3, 4, 5), x: torch.Tensor = f32(6, 4, 5)
) -> tuple[torch.Tensor, torch.Tensor]:
    copy = x.exp().transpose(-1, -2).clone(memory_format=torch.contiguous_format)
    return copy.sum(), copy.view(2, 3, 5, 4).transpose(-1, -2)
