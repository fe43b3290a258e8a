"""Walks from the softmax down to the product with the value, through casts, views and a dropout."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, known_equal, tensor_of
from eductor.passes.joint.attention.numbers import number_of
from eductor.passes.joint.attention.scores import PRODUCTS, same_values
from eductor.passes.joint.attention.softmax import forward_users

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Dropout:
    """A dropout of the weights: its nodes, its probability."""

    nodes: tuple[Node, ...]
    p: float
    input: Node
    output: Node


@dataclass(frozen=True, slots=True)
class Weights:
    """The path from the softmax to the product with the value."""

    product: Node
    operand: Node
    """The weights as the product takes them."""
    is_left: bool
    moved: tuple[Node, ...] = ()
    dropout: Dropout | None = None


def weights_of(graph: GraphView, softmax: Node) -> Weights | No:
    """The path from a softmax to the product with the value, or why there is none."""
    moved: list[Node] = []
    dropout: Dropout | None = None
    node = softmax
    while True:
        found = _dropout(graph, node)
        if found is not None:
            if dropout is not None:
                return No("the weights are dropped out twice")
            dropout, node = found, found.output
            continue
        users = forward_users(node)
        if len(users) > 1:
            return No(f"the weights {node.name} are used elsewhere, so they are computed anyway", node)
        if not users:
            return No("the weights are not multiplied by a value")
        user = users[0]
        product = _product(graph, user, node)
        if isinstance(product, No):
            return product
        if product is not None:
            return replace(product, moved=tuple(moved), dropout=dropout)
        if same_values(graph, user) is not node:
            return No(f"the weights pass through {user.name}", user)
        moved.append(user)
        node = user


def _product(graph: GraphView, user: Node, node: Node) -> Weights | No | None:
    bound = graph.bind(user) if user.op == "call_function" else None
    if user.op == "output":
        return No("the weights leave the graph")
    if not isinstance(bound, Bound) or bound.packet not in PRODUCTS:
        return None
    left, right = (bound[name] for name in PRODUCTS[bound.packet])
    return No("the weights are multiplied by themselves") if left is right else Weights(user, node, left is node)


def _dropout(graph: GraphView, node: Node) -> Dropout | None:
    """The dropout of a value that nothing else reads."""
    users = forward_users(node)
    user = users[0] if len(users) == 1 else None
    bound = _read(graph, user, aten.native_dropout, aten.mul)
    if user is None or bound is None:
        return None
    if bound.packet is aten.native_dropout:
        picks = forward_users(user)
        first = [n for n in picks if n.target is operator.getitem and n.args[1] == 0]
        is_drawn = bound["train"] in (True, None) and isinstance(bound["p"], float) and 0 <= bound["p"] < 1
        if len(picks) > 1 + sum(n.args[1] == 1 and not forward_users(n) for n in picks) or len(first) != 1:
            return None
        return Dropout((user, *picks), bound["p"], node, first[0]) if is_drawn else None
    return _decomposed(graph, node, user, bound)


def _decomposed(graph: GraphView, node: Node, user: Node, bound: Bound) -> Dropout | None:
    """`(rand > p) * x * (1 / (1 - p))`."""
    kept = bound["self"] if bound["other"] is node else bound["other"]
    compared = _read(graph, kept, aten.gt)
    drawn = compared and _read(graph, compared["self"], aten.rand, aten.rand_like)
    after = forward_users(user)
    scaled = _read(graph, after[0], aten.mul) if len(after) == 1 else None
    if not compared or not drawn or not scaled:
        return None
    p, factor = number_of(graph, compared["other"]), number_of(graph, scaled["other"])
    here, draws = tensor_of(node), tensor_of(compared["self"])
    if p is None or factor is None or not 0 <= p < 1 or abs(factor * (1 - p) - 1) > 1e-6:
        return None
    if here is None or draws is None or not known_equal(tuple(here.shape), tuple(draws.shape)):
        return None
    draw = compared["self"]
    if drawn.get("generator") is not None or len(forward_users(draw)) > 1 or len(forward_users(kept)) > 1:
        return None
    return Dropout((draw, kept, user, after[0]), p, node, after[0])


def _read(graph: GraphView, x: Any, *packets: Any) -> Bound | None:
    """A call of one of these operators; None for any other value."""
    bound = graph.bind(x) if isinstance(x, Node) and x.op == "call_function" else None
    return bound if isinstance(bound, Bound) and bound.packet in packets else None
