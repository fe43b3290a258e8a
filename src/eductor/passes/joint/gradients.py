"""The gradients of a joint graph, and how they are transposed."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, bind, value_of
from eductor.graph.values.meta import results_of
from eductor.pipeline.base import Context

aten = torch.ops.aten


def accumulated_gradients(graph: GraphView, context: Context) -> dict[Node, Node]:
    """The parameter that each gradient accumulates into, which gives it the strides of the parameter.

    The gradient of any other input may be read as it is: by a hook, or by the backward of what computed the input.
    Gradients are the last outputs of a joint graph.
    """
    outputs = results_of(graph.module)
    inputs = graph.graph.find_nodes(op="placeholder")
    wanted = context.gradients
    pairs = zip(outputs[len(outputs) - len(wanted) :], wanted, strict=True)
    return {g: inputs[i] for g, i in pairs if isinstance(g, Node) and i in context.parameters}


def swaps_rows_and_columns(node: Node) -> bool:
    """Whether a node exchanges the last two of at least three dimensions."""
    bound = bind(node) if node.op == "call_function" else None
    if not isinstance(bound, Bound) or bound.packet not in (aten.permute, aten.transpose):
        return False
    rank = value_of(node).dim()
    if rank < 3:
        return False
    if bound.packet is aten.permute:
        return [d % rank for d in bound["dims"]] == [*range(rank - 2), rank - 1, rank - 2]
    return {bound["dim0"] % rank, bound["dim1"] % rank} == {rank - 2, rank - 1}


def operand_of(node: Node) -> Node:
    """The first operand of a call, which is a node."""
    operand = node.args[0]
    assert isinstance(operand, Node)
    return operand
