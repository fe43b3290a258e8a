"""Moves each value right before its first user, so that fewer values are alive at a time."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch.fx import Node

from eductor.cost import bytes_of
from eductor.graph import GraphView, Rewriter
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage="post_grad", numerics="exact", inference_only=True)
def reorder_for_locality(graph: GraphView, rewrite: Rewriter) -> None:
    """Moves each value right before its first user, so that fewer values are alive at a time.

    A value that is smaller than the operands that die with it stays: moving it would keep them alive longer. Nothing
    moves across a write or a barrier; random draws, checks and collectives stay where they are.

    It pays in memory, where values were computed long before they are used.
    """
    order = _order(graph)
    moved = False
    for node, after in zip(reversed(order[:-1]), reversed(order), strict=False):
        if node.next is not after:
            rewrite.move(node, before=after)
            moved = True
    if not moved:
        rewrite.reject("each value is computed right before it is used, or cannot be computed later")


def _order(graph: GraphView) -> list[Node]:
    """The nodes in their new order, built from the end: each node once all its users are placed, then its operands."""
    regions = _regions(graph)
    done: dict[Node, None] = {}
    for last in reversed(list(graph.nodes)):
        pending = [last]
        while pending:
            node = pending.pop()
            if node in done:
                continue
            done[node] = None
            # The first operand is pushed first and popped last, so it comes first in the graph.
            pending += [
                x for x in _movable(graph, node) if regions[x] == regions[node] and done.keys() >= x.users.keys()
            ]
    return list(reversed(done))


def _movable(graph: GraphView, node: Node) -> Iterator[Node]:
    """The operands of a call that may be computed right before it, anywhere in its region."""
    effect = graph.effects.of(node)
    if node.op != "call_function" or node.target is operator.getitem or not effect.removable:
        return
    for x in node.all_input_nodes:
        # A call that defines a data-dependent size stays before all values of this size.
        is_call = x.op == "call_function" and x.target is not operator.getitem and "unbacked_bindings" not in x.meta
        if is_call and graph.effects.of(x).removable and not _keeps_more(graph, x):
            yield x


def _keeps_more(graph: GraphView, node: Node) -> bool:
    """Whether a value is smaller than the operands that only it uses, which moving it would keep alive."""
    if graph.effects.of(node).is_view:
        return False
    alone = [x for x in node.all_input_nodes if x.op == "call_function" and len(x.users) == 1]
    return bytes_of(node) < sum(map(bytes_of, alone))


def _regions(graph: GraphView) -> dict[Node, int]:
    """The number of writes and barriers before each node."""
    found: dict[Node, int] = {}
    region = 0
    for node in graph.nodes:
        effect = graph.effects.of(node)
        found[node] = region
        region += bool(effect.writes or effect.barrier)
    return found


@reorder_for_locality.example
def early_tangent(x: torch.Tensor = f32(4, 5), y: torch.Tensor = f32(4, 5)) -> torch.Tensor:
    a, b, c = x.cos(), y.sin(), x.tan()
    return a * b + c


@reorder_for_locality.refuses("or cannot be computed later")
def early_sum(x: torch.Tensor = f32(4, 5)) -> torch.Tensor:
    total = x.sin().sum(0)
    return x.cos().exp() + total


@reorder_for_locality.refuses("or cannot be computed later")
def early_draw(x: torch.Tensor = f32(4, 5)) -> torch.Tensor:
    noise = torch.rand_like(x)
    return x.cos().exp() + noise
