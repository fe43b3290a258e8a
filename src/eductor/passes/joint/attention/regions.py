"""The region of a graph that computes an attention, with or without the nodes around its products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import sort_key
from eductor.graph import Bound, GraphView, is_row_major
from eductor.passes.joint.attention.attention import Attention, core, value_at
from eductor.passes.joint.attention.call import Fused, UnknownSize, fused
from eductor.passes.joint.attention.operands import widened
from eductor.passes.joint.attention.program import CallProgram, Writer, write
from eductor.passes.joint.attention.scores import Filled
from eductor.passes.joint.attention.softmax import decomposed_from, forward_users
from eductor.regions.replace_region import Region
from eductor.views import RESHAPES

aten = torch.ops.aten


def regions(graph: GraphView, found: Attention, *, training: bool) -> Iterator[tuple[Region, Fused]]:
    """The region to replace and the call that computes it: first with the nodes around the products, then without."""
    wide = _widened(graph, found)
    after = _after(graph, found)
    choices = [(wide, after), (found, ())] if wide is not found or after else [(found, ())]
    for attention, taken in choices:
        with suppress(UnknownSize):
            yield _region(graph, attention, taken, training=training)


def _widened(graph: GraphView, found: Attention) -> Attention:
    query, key, value = (widened(graph, operand, found.axes, found.groups) for operand in found.operands)
    if query.repeats > 1 or key.repeats != value.repeats:  # not grouped heads, or not all of one group
        return found
    wide = replace(found, query=query, key=key, value=value)
    return wide if any(o.nodes for o in wide.operands) else found


def _after(graph: GraphView, found: Attention) -> tuple[Node, ...]:
    """Views and copies of the result up to the last row-major one, which the call can return directly."""
    nodes: list[Node] = []
    taken = 0
    node = found.weights.product
    while len(users := forward_users(node)) == 1 and users[0].op == "call_function":
        node = users[0]
        bound = graph.bind(node)
        if not isinstance(bound, Bound) or bound.packet not in (*RESHAPES, aten.clone):
            break
        nodes.append(node)
        if is_row_major(value_at(node)):
            taken = len(nodes)
    return tuple(nodes[:taken])


def _region(graph: GraphView, found: Attention, after: Sequence[Node], *, training: bool) -> tuple[Region, Fused]:
    nodes = sorted(
        {*core(found), *_constants(graph, found), *after, *(n for o in found.operands for n in o.nodes)}, key=sort_key
    )
    writer = Writer()
    for operand in found.operands:
        writer.take(operand.node)
    for mask in found.masks.nodes:
        writer.take(mask)
    original = _original(graph, found, nodes, writer)
    output = after[-1] if after else found.weights.product
    inputs = tuple(writer.inputs)
    call = fused(graph, found, after, output, inputs, training=training)
    return Region(inputs, frozenset(nodes), output, original), call


def _original(graph: GraphView, found: Attention, nodes: Sequence[Node], writer: Writer) -> CallProgram:
    """The calls of the region, with softmax and dropout whole, as autograd saw them."""
    softmax, dropout = found.softmax, found.weights.dropout
    fills = _fills(graph, found)
    decomposed = {*softmax.nodes, *(dropout.nodes if dropout else ()), *_constants(graph, found)}
    for node in nodes:
        if node is softmax.output:
            op, *rest = softmax.whole
            writer.call(node, op, softmax.input, *rest)
        elif dropout and node is dropout.output:
            writer.call(node, _dropped, dropout.input, dropout.p)
        elif node in fills:
            op, *args = fills[node]
            writer.call(node, op, *args)
        elif node not in decomposed:
            write(graph, writer, [node])
    return writer.program()


def _fills(graph: GraphView, found: Attention) -> dict[Node, tuple[Any, ...]]:
    """The `masked_fill` that each `where` was decomposed from, with its arguments."""
    fills: dict[Node, tuple[Any, ...]] = {}
    for step in found.scores.steps:
        bound = graph.bind(step.node)
        if isinstance(step, Filled) and isinstance(bound, Bound) and bound.packet is aten.where:
            number = _scalar(graph, bound["self"])
            scores, condition, was = bound["other"], bound["condition"], decomposed_from(step.node)
            if was == "aten.masked_fill.Scalar" and number is not None:
                fills[step.node] = (aten.masked_fill.Scalar, scores, condition, number)
            elif was == "aten.masked_fill.Tensor":
                fills[step.node] = (aten.masked_fill.Tensor, scores, condition, bound["self"])
    return fills


def _constants(graph: GraphView, found: Attention) -> list[Node]:
    """Numbers given to a `masked_fill` that decomposition turned into tensors."""
    filled = [node for node, (op, *_) in _fills(graph, found).items() if op is aten.masked_fill.Scalar]
    values = [bound["self"] for bound in map(graph.bind, filled) if isinstance(bound, Bound)]
    return [value for value in values if isinstance(value, Node) and len(forward_users(value)) == 1]


def _scalar(graph: GraphView, node: Node) -> Any:
    bound = graph.bind(node)
    return bound["s"] if isinstance(bound, Bound) and bound.packet is aten.scalar_tensor else None


def _dropped(x: torch.Tensor, p: float) -> torch.Tensor:
    dropped: torch.Tensor = aten.native_dropout(x, p, True)[0]
    return dropped
