"""Moves nodes after their operands, and keeps the order of all others."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from eductor.graph import GraphView, Rewriter
from eductor.graph.effects.order import moves
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage=("joint", "post_grad"), numerics="exact")
def stable_topological_sort(graph: GraphView, rewrite: Rewriter) -> None:
    """Moves nodes after their operands, and keeps the order of all others.

    It pays nothing by itself: it allows the passes before it to insert anywhere.
    """
    moved = False
    for node, before in moves(graph.graph):
        rewrite.move(node, before=before)
        moved = True
    if not moved:
        rewrite.reject("each node is already after its operands")


def _late_operand(module: GraphModule) -> None:
    """Moves the first call after its users, as a pass may that inserts at the end."""
    first = next(n for n in module.graph.nodes if n.op == "call_function")
    module.graph.output_node().prepend(first)


@stable_topological_sort.example(prepare=_late_operand)
def operand_after_its_user(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.sin().cos() + x


@stable_topological_sort.refuses("each node is already after its operands")
def sorted_graph(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.sin().cos() + x
