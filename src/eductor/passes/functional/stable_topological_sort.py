"""Puts each node after its operands, and otherwise keeps the order."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from eductor.graph.effects.order import moves
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage=("joint", "post_grad"), numerics="exact")
def stable_topological_sort(graph: GraphView, rewrite: Rewriter) -> None:
    """Puts each node after its operands, and otherwise keeps the order.

    It pays nothing in time: it lets the passes before it insert where they like.
    """
    moved = False
    for node, before in moves(graph.graph):
        rewrite.move(node, before=before)
        moved = True
    if not moved:
        rewrite.reject("each node stands after its operands already")


def _late_operand(module: GraphModule) -> None:
    """Moves the first call behind its users, as a pass might that inserts at the end."""
    first = next(n for n in module.graph.nodes if n.op == "call_function")
    module.graph.output_node().prepend(first)


@stable_topological_sort.example(prepare=_late_operand)
def operand_after_its_user(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.sin().cos() + x


@stable_topological_sort.refuses("already")
def sorted_graph(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.sin().cos() + x
