"""Errors of indices out of bounds, as eager words them: Inductor's name a line of generated code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

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
    for node in module.graph.nodes:
        for base, dim, index in _indices(node) if node.op == "call_function" else ():
            if base is None or not base.dim() or base.device.type != "cpu":
                continue
            part = _part(index, places) if isinstance(base.shape[dim], int) else None
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


def _part(index: Node, places: dict[Node, int]) -> tuple[GraphModule, tuple[int, ...]] | None:
    """The graph that computes an index, and its inputs; None where it depends on more than inputs of integers."""
    needed, pending = {index}, [index]
    while pending and len(needed) <= _MOST:
        node = pending.pop()
        value = tensor_of(node)
        if value is None or value.is_floating_point() or node.op not in ("placeholder", "call_function"):
            return None
        pending += [n for n in node.all_input_nodes if n not in needed]
        needed.update(node.all_input_nodes)
    if pending:
        return None
    graph, copies = Graph(), dict[Node, Node]()
    for node in sorted(needed):
        copies[node] = (
            graph.placeholder(node.name)
            if node in places
            else graph.create_node(node.op, node.target, *_copied(node, copies))
        )
    graph.output(copies[index])
    inputs = tuple(places[node] for node in sorted(needed) if node in places)
    return GraphModule(torch.nn.Module(), graph), inputs


def _copied(node: Node, copies: dict[Node, Node]) -> Any:
    return map_arg((node.args, node.kwargs), copies.__getitem__)


def _unknown(lookups: Sequence[_Lookup]) -> IndexError:
    """The error where the index is computed from more than integers."""
    return IndexError(f"an index is out of bounds, in {' or '.join(dict.fromkeys(map(str, lookups)))}")
