"""Computes once what the graph computes several times: the same call on the same values."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph.no import No
from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import AHEAD, difference, value_of
from eductor.graph.view import GraphView
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten

# One is as good as another, so that what is computed from two of them is the same; but each is memory that somebody may
# want to write, and costs less than to keep another one alive for it.
_FILLED = {
    *(aten.full, aten.full_like, aten.new_full, aten.zeros, aten.zeros_like, aten.new_zeros, aten.ones, aten.ones_like),
    *(aten.new_ones, aten.clone),
}
_UNDEFINED = {
    *(aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty, aten.new_empty_strided),
}
"""What is in them is anybody's guess, so that no two are equal."""


@graph_pass(stage="post_grad", numerics="exact")
def common_subexpression_elimination(graph: GraphView, rewrite: Rewriter) -> None:
    """Computes once what the graph computes several times: the same call on the same values.

    Values are numbered: calls of one operator on operands of the same numbers have the same number. What draws, checks,
    communicates or writes is not called twice for its value, so it stays; and so does a value whose sharing would show.

    It pays always: what is the same is computed once. Twins come from models, from autograd, and from passes that spell
    two things alike.
    """
    numbers: dict[Node, int] = {}
    first: dict[Hashable, Node] = {}
    alone: dict[Hashable, Node | None] = {}
    for node in graph.nodes:
        numbers[node] = len(numbers)
        if node.op not in ("call_function", "get_attr"):
            continue
        look = _look(graph, node, numbers)
        if look not in alone:
            alone[look] = node
            continue
        earlier, alone[look] = alone[look], None
        if earlier is not None:
            first[_key(graph, earlier, numbers)] = earlier
        key = _key(graph, node, numbers)
        twin = first.setdefault(key, node) if key is not None else node
        if twin is node:
            continue
        verdict = _is_same_value(graph, node, twin)
        if not verdict:
            rewrite.reject(verdict, node)
            first[key] = node  # what comes later is nearer to this one
            continue
        numbers[node] = numbers[twin]
        if node.op == "get_attr" or not _FILLED.isdisjoint(graph.keys(node)):
            continue
        verdict = graph.effects.may_alias(node, twin)
        if verdict:
            rewrite.replace(node, twin)
        else:
            rewrite.reject(verdict, node)


def _is_same_value(graph: GraphView, node: Node, twin: Node) -> Literal[True] | No:
    """Whether two calls that are spelled alike give the same value."""
    effect = graph.effects.of(node)
    if effect.random:
        return No("it draws other random numbers")
    if not effect.removable:
        return No(
            f"it is called for more than its value: {effect.barrier or effect.ordered or effect.kept or 'it writes'}"
        )
    unlike = difference(value_of(twin), value_of(node))
    if unlike:
        return No(f"it differs from {twin.name}: {unlike}", twin)
    return graph.effects.unwritten(node.all_input_nodes, twin, node)


def _look(graph: GraphView, node: Node, numbers: dict[Node, int]) -> Hashable:
    """What is cheap to see and the same for calls that compute the same: most calls are told apart by it, unread."""
    keys = graph.keys(node)
    return keys[0] if keys else None, tuple(sorted([numbers[operand] for operand in node.all_input_nodes]))


def _key(graph: GraphView, node: Node, numbers: dict[Node, int]) -> Hashable | None:
    """What two nodes have in common that compute the same; None for one that is like no other."""
    if AHEAD in node.meta:
        return None  # it is computed again later, so that it is not held in between
    if node.op == "get_attr":
        return ("attribute", str(node.target))
    if not _UNDEFINED.isdisjoint(graph.keys(node)):
        return None
    bound = graph.bind(node)
    if isinstance(bound, Bound):
        key: Any = (bound.op, _spelled(dict(bound.arguments), numbers))
    else:
        key = (node.target, _spelled((node.args, dict(node.kwargs)), numbers))
    try:
        hash(key)
    except TypeError:  # an argument that cannot be compared
        return None
    return key  # type: ignore[no-any-return]


def _spelled(given: Any, numbers: dict[Node, int]) -> Any:
    """An argument as something that is equal for equal ones only: 1, 1.0 and True are three."""
    if isinstance(given, Node):
        return ("value", numbers[given])
    if isinstance(given, (list, tuple)):
        return tuple(_spelled(x, numbers) for x in given)
    if isinstance(given, dict):
        return tuple((name, _spelled(x, numbers)) for name, x in given.items())
    if isinstance(given, slice):
        return ("slice", *(_spelled(x, numbers) for x in (given.start, given.stop, given.step)))
    return (type(given), repr(given) if isinstance(given, (float, complex)) else given)


@common_subexpression_elimination.example
def the_same_product_twice(x: torch.Tensor = f32(3, 3), y: torch.Tensor = f32(3, 3)) -> torch.Tensor:
    return (x @ y).sin() + (x @ y).cos()


@common_subexpression_elimination.example
def the_same_view_twice(x: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    return x[1:].sin() * x[1:].sin()


@common_subexpression_elimination.refuses("a separate output")
def two_values_that_are_returned(x: torch.Tensor = f32(3)) -> tuple[torch.Tensor, ...]:
    return x.sin(), x.sin()


@common_subexpression_elimination.refuses("it draws other random numbers")
def two_draws(x: torch.Tensor = f32(3)) -> torch.Tensor:
    return torch.rand_like(x) - torch.rand_like(x)
