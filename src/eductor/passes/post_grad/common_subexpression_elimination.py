"""Merges duplicates: calls of the same operator on the same values."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, difference, value_of
from eductor.graph.values.meta import AHEAD
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten

# Two of them are equal, so what is computed from them is equal, too. They are not merged: a later write may want each in
# place, and filling memory again costs less than keeping it alive.
_FILLED = {
    *(aten.full, aten.full_like, aten.new_full, aten.zeros, aten.zeros_like, aten.new_zeros, aten.ones, aten.ones_like),
    *(aten.new_ones, aten.clone),
}
_UNDEFINED = {
    *(aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty, aten.new_empty_strided),
}
"""Their contents are undefined, so no two are equal."""


@graph_pass(stage="post_grad", numerics="exact")
def common_subexpression_elimination(graph: GraphView, rewrite: Rewriter) -> None:
    """Merges duplicates: calls of the same operator on the same values.

    Values are numbered: calls of one operator on operands of the same numbers have the same number. Calls that draw,
    check, communicate or write stay, and so does a value whose sharing would be observable.

    It pays always: equal values are computed once. Duplicates come from models, from autograd and from other passes.
    """
    numbers: dict[Node, int] = {}
    first: dict[Hashable, Node] = {}
    singles: dict[Hashable, Node | None] = {}
    for node in graph.nodes:
        numbers[node] = len(numbers)
        if node.op not in ("call_function", "get_attr"):
            continue
        quick_key = _quick_key(graph, node, numbers)
        if quick_key not in singles:
            singles[quick_key] = node
            continue
        earlier, singles[quick_key] = singles[quick_key], None
        if earlier is not None:
            first[_key(graph, earlier, numbers)] = earlier
        key = _key(graph, node, numbers)
        twin = first.setdefault(key, node) if key is not None else node
        if twin is node:
            continue
        verdict = _is_same_value(graph, node, twin)
        if not verdict:
            rewrite.reject(verdict, node)
            first[key] = node  # later duplicates are closer to this one
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
    """Whether two equal calls return the same value."""
    effect = graph.effects.of(node)
    if effect.random:
        return No("it draws other random numbers")
    if not effect.removable:
        return No(
            f"it has an effect besides its value: {effect.barrier or effect.ordered or effect.kept or 'it writes'}"
        )
    mismatch = difference(value_of(twin), value_of(node))
    if mismatch:
        return No(f"it differs from {twin.name}: {mismatch}", twin)
    return graph.effects.unwritten(node.all_input_nodes, twin, node)


def _quick_key(graph: GraphView, node: Node, numbers: dict[Node, int]) -> Hashable:
    """A cheap key that equal calls share; it distinguishes most calls without binding their arguments."""
    keys = graph.keys(node)
    return keys[0] if keys else None, tuple(sorted([numbers[operand] for operand in node.all_input_nodes]))


def _key(graph: GraphView, node: Node, numbers: dict[Node, int]) -> Hashable | None:
    """A key that is the same for nodes that compute the same; None for a node without duplicates."""
    if AHEAD in node.meta:
        return None  # it is recomputed on purpose, so that it is not held in between
    if node.op == "get_attr":
        return ("attribute", str(node.target))
    if not _UNDEFINED.isdisjoint(graph.keys(node)):
        return None
    bound = graph.bind(node)
    if isinstance(bound, Bound):
        key: Any = (bound.op, _hashable(dict(bound.arguments), numbers))
    else:
        key = (node.target, _hashable((node.args, dict(node.kwargs)), numbers))
    try:
        hash(key)
    except TypeError:  # an argument that cannot be compared
        return None
    return key  # type: ignore[no-any-return]


def _hashable(given: Any, numbers: dict[Node, int]) -> Any:
    """A hashable form of an argument, which distinguishes 1, 1.0 and True."""
    if isinstance(given, Node):
        return ("value", numbers[given])
    if isinstance(given, (list, tuple)):
        return tuple(_hashable(x, numbers) for x in given)
    if isinstance(given, dict):
        return tuple((name, _hashable(x, numbers)) for name, x in given.items())
    if isinstance(given, slice):
        return ("slice", *(_hashable(x, numbers) for x in (given.start, given.stop, given.step)))
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
