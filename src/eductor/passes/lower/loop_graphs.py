"""The two graphs of a `while_loop` that steps through the slices of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from eductor.compat import INHERITED_META
from eductor.graph import Effects, output_of, propagate, update

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Operands:
    """What a loop takes, by its values: counters, carries and stacked results change, the rest does not."""

    counters: Sequence[Any]
    carries: Sequence[Any]
    stacks: Sequence[Any]
    xs: Sequence[Any]
    others: Sequence[Any]

    def all(self) -> list[Any]:
        return [*self.counters, *self.carries, *self.stacks, *self.xs, *self.others]

    def named(self, graph: Graph) -> Operands:
        """The same operands, as inputs of a graph."""
        groups = {"counter": self.counters, "carry": self.carries, "stack": self.stacks}
        groups |= {"x": self.xs, "other": self.others}
        return Operands(*([graph.placeholder(f"{kind}_{i}") for i, _ in enumerate(g)] for kind, g in groups.items()))


def condition_graph(operands: Operands, like: Node) -> GraphModule:
    """Whether a slice is left."""
    graph = Graph()
    given = operands.named(graph)
    length = operands.xs[0].shape[0]
    if isinstance(length, torch.SymInt):
        length = _call(graph, like, aten.sym_size.int, given.xs[0], 0)
    graph.output(_call(graph, like, aten.lt.Scalar, given.counters[0], length))
    return _module(torch.nn.Module(), graph, operands)


def body_graph(step: GraphModule, operands: Operands, others: Sequence[Any], like: Node) -> GraphModule:
    """One step. `others` are the operands that every step takes whole: nodes, which become inputs, or constants.

    It writes its results into the stacks, which no other node reads: a copy in each step would cost more than the step.
    """
    graph = Graph()
    given = operands.named(graph)
    index = given.counters[-1]
    slices = [_call(graph, like, aten._unsafe_index.Tensor, x, [index]) for x in given.xs]
    for one in slices:
        one.meta["inductor_realize_to_strides"] = True  # torch 2.11 generates wrong C++ for a transposed lookup
    passed = iter(given.others)
    arguments = [*given.carries, *slices, *(next(passed) if isinstance(x, Node) else x for x in others)]
    inputs = step.graph.find_nodes(op="placeholder")
    returned: Any = graph.graph_copy(step.graph, dict(zip(inputs, arguments, strict=True)))
    results = [x for x in returned[len(given.carries) :] if isinstance(x, Node)]
    counters = [_call(graph, like, aten.add.Tensor, counter, 1) for counter in given.counters]
    stacks = [
        _call(graph, like, aten.index_put_.default, stack, [index], result)
        for stack, result in zip(given.stacks, results, strict=True)
    ]
    graph.output((*counters, *returned[: len(given.carries)], *stacks))
    module = _module(step, graph, operands)
    _own_carries(module, len(counters), len(given.carries))
    return module


def _module(owner: torch.nn.Module, graph: Graph, operands: Operands) -> GraphModule:
    module = GraphModule(owner, graph)
    propagate(module, operands.all())
    return module


def _own_carries(module: GraphModule, first: int, count: int) -> None:
    """Copies the carries of the next step that share memory with an input or with each other: a loop may not."""
    graph, effects = module.graph, Effects(module.graph)
    taken, own = {effects.place(n) for n in graph.find_nodes(op="placeholder")}, list(output_of(module))
    copies = []
    for i in range(first, first + count):
        place = effects.place(own[i])
        if place in taken:
            with graph.inserting_before(graph.output_node()):
                own[i] = _call(graph, own[i], aten.clone.default, own[i])
            copies.append(own[i])
        taken.add(place)
    graph.output_node().args = (tuple(own),)
    update(module, copies)
    module.recompile()


def _call(graph: Graph, like: Node, op: Any, *args: Any) -> Node:
    node = graph.call_function(op, args)
    node.meta.update({key: like.meta[key] for key in INHERITED_META if key in like.meta})
    return node
