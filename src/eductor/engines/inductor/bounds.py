"""Errors of indices out of bounds, as eager words them: Inductor's name a line of generated code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from eductor.engines.inductor.bodies import flat_calls
from eductor.graph.provenance import source_line
from eductor.graph.reading.bind import Bound, bind
from eductor.graph.values.meta import tensor_of
from eductor.program.job import Run

aten = torch.ops.aten

_LISTS = (aten.index, aten.index_put, aten.index_put_)
_SCATTERS = (
    aten.scatter,
    aten.scatter_,
    aten.scatter_add,
    aten.scatter_add_,
    aten.scatter_reduce,
    aten.scatter_reduce_,
)
_MOST = 20
"""The most nodes that are computed again to find the index."""


@dataclass(frozen=True)
class _Lookup:
    """One index of an operator: what it selects from, and how to compute it again from inputs of integers, if known."""

    operator: str
    line: str
    dim: int
    size: Any
    index: GraphModule | None = None
    inputs: tuple[int, ...] = ()

    def error(self, given: Sequence[Any]) -> Exception | None:
        """The error for the first index that is out of bounds; None if none is known to be."""
        if self.index is None:
            return None
        index = self.index(*(given[i] for i in self.inputs))
        lowest = -self.size if self.operator.startswith("index") else 0
        wrong = index[(index < lowest) | (index >= self.size)]
        if not wrong.numel():
            return None
        # Eager's kernels differ here.
        kind = RuntimeError if self.operator.startswith(("gather", "scatter")) else IndexError
        where = f"index {wrong[0].item()} is out of bounds for dimension {self.dim} with size {self.size}"
        return kind(f"{where}, in {self}")

    def __str__(self) -> str:
        return f"{self.operator} at {self.line}" if self.line else self.operator


def explaining_bounds(run: Run, lookups: Sequence[_Lookup]) -> Run:
    """The function of a compiled graph, with eager's errors for indices out of bounds."""
    if not lookups:
        return run
    places = {i for lookup in lookups for i in lookup.inputs}

    def checked(inputs: list[Any]) -> Sequence[Any]:
        kept = [x if i in places else None for i, x in enumerate(inputs)]  # the call empties the list
        try:
            return run(inputs)
        except RuntimeError as error:
            if "index out of bounds" not in str(error):
                raise
            found = (lookup.error(kept) for lookup in lookups)
            raise next((e for e in found if e is not None), _unknown(lookups)) from error

    return checked


def lookups_in(module: GraphModule) -> list[_Lookup]:
    """The lookups of a graph on the CPU."""
    places = {node: i for i, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    found = []
    node: Any
    for node, given in flat_calls(module):
        for base, dim, index in _indices(node):
            if base is None or not base.dim() or base.device.type != "cpu":
                continue
            part = _part(index, places, given) if isinstance(base.shape[dim], int) else None
            op = node.target.name().removeprefix("aten::").partition(".")[0]
            found.append(_Lookup(op, source_line(node), dim, base.shape[dim] if part else None, *(part or ())))
    return found


def _indices(node: Node) -> Iterator[tuple[torch.Tensor | None, int, Node]]:
    """What an operator looks up: the tensor, the dimension, the index."""
    bound = bind(node)
    if not isinstance(bound, Bound):
        return
    if bound.packet in _LISTS:
        for dim, index in enumerate(bound["indices"]):
            value = tensor_of(index)
            if value is not None and value.dtype in (torch.bool, torch.uint8):
                return  # a mask takes several dimensions
            if value is not None:
                yield tensor_of(bound["self"]), dim, index
    elif bound.packet in (aten.gather, *_SCATTERS):
        yield tensor_of(bound["self"]), bound["dim"], bound["index"]
    elif bound.packet is aten.embedding:
        yield tensor_of(bound["weight"]), 0, bound["indices"]


def _part(
    index: Node, places: Mapping[Node, int], given: Mapping[Node, Node]
) -> tuple[GraphModule, tuple[int, ...]] | None:
    """The graph that computes an index, and its inputs; None where it depends on more than inputs of integers.

    `given` has the operands of the body that the index is in.
    """
    index = given.get(index, index)
    needed = _needed(index, given, {})
    if needed is None:
        return None
    graph, inputs = Graph(), [node for node in needed if node in places]
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in needed:
        if node not in copies:
            args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: copies[given.get(n, n)])
            copies[node] = graph.create_node(node.op, node.target, args, kwargs)
    graph.output(copies[index])
    return GraphModule(torch.nn.Module(), graph), tuple(places[node] for node in inputs)


def _needed(node: Node, given: Mapping[Node, Node], found: dict[Node, None]) -> dict[Node, None] | None:
    """A node after all that it is computed from; None if these are more than a few, or not only integers."""
    value = tensor_of(node)
    if value is None or value.is_floating_point() or node.op not in ("placeholder", "call_function"):
        return None
    for operand in (given.get(n, n) for n in node.all_input_nodes):
        if operand not in found and (_needed(operand, given, found) is None or len(found) >= _MOST):
            return None
    found[node] = None
    return found


def _unknown(lookups: Sequence[_Lookup]) -> IndexError:
    """The error where the index is computed from more than integers."""
    return IndexError(f"an index is out of bounds, in {' or '.join(dict.fromkeys(map(str, lookups)))}")
