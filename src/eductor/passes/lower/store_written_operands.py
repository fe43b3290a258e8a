"""Stores what an indexed write reads of the memory that it writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch.fx import GraphModule, Node, map_arg

from eductor.graph import GraphView, Rewriter
from eductor.ops.copies import stored
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten

_WRITES = (aten.index_put_, aten.scatter_, aten.scatter_add_, aten.scatter_reduce_)
"""Those for which Inductor generates kernels."""


@graph_pass(stage="lower", numerics="exact", in_place=True)
def store_written_operands(graph: GraphView, rewrite: Rewriter) -> None:
    """Stores what an indexed write reads of the memory that it writes.

    Inductor computes the operands of a scatter in its loop, which would read elements that earlier steps have written.

    It pays always: the result is wrong without it.
    """
    for node in graph.find(*_WRITES):
        written = node.args[0]
        assert isinstance(written, Node)
        place = graph.effects.place(written)
        operands: list[Node] = []
        map_arg((node.args[1:], node.kwargs), operands.append)
        own = {n: _stored(graph, rewrite, n, node, place) for n in operands if _reads(graph, n, place)}
        if not own:
            rewrite.reject("no operand reads what it writes", node)
            continue
        args, kwargs = map_arg((node.args[1:], dict(node.kwargs)), partial(_or_itself, own))
        rewrite.update(node, args=(written, *args), kwargs=kwargs, respelled=True)


def _or_itself(own: Mapping[Node, Node], operand: Node) -> Node:
    return own.get(operand, operand)


def _reads(graph: GraphView, operand: Node, place: object) -> bool:
    """Whether a value is computed from this memory, and may be computed within the loop of the write."""
    return any(graph.effects.place(n) == place for n in _computed_with(operand))


def _computed_with(operand: Node) -> Iterator[Node]:
    """A value and all that it is computed from, up to values that are stored."""
    seen, pending = {operand}, [operand]
    while pending:
        node = pending.pop()
        if node.target is not stored.default:
            yield node
            pending += [n for n in node.all_input_nodes if n not in seen]
            seen.update(node.all_input_nodes)


def _stored(graph: GraphView, rewrite: Rewriter, operand: Node, node: Node, place: object) -> Node:
    """The value in memory of its own."""
    if graph.effects.place(operand) == place:
        operand = rewrite.insert(aten.clone.default, operand, before=node, like=node)
    return rewrite.insert(stored.default, operand, before=node, like=node)


def _in_place(module: GraphModule) -> None:
    """Writes in place, as `reinplace_inplaceable_ops` does."""
    (scatter,) = module.graph.find_nodes(op="call_function", target=aten.scatter.src)
    scatter.target = aten.scatter_.src


ROWS = torch.tensor([[2, 0], [1, 1]])


@store_written_operands.example(prepare=_in_place)
def turned_rows(x: torch.Tensor = f32(3, 2)) -> torch.Tensor:
    product = x @ x.t() @ x
    return aten.scatter.src(product, 0, ROWS, product * 2) + 1  # type: ignore[no-any-return]


@store_written_operands.refuses("no operand reads", prepare=_in_place)
def rows_of_another(x: torch.Tensor = f32(3, 2), y: torch.Tensor = f32(2, 2)) -> torch.Tensor:
    return aten.scatter.src(x @ x.t() @ x, 0, ROWS, y * 2) + 1  # type: ignore[no-any-return]
