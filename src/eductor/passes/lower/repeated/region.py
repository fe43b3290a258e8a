"""A region: consecutive calls of a graph, with what they read from outside and what is read of them outside."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial

import torch
from torch.fx import Graph, GraphModule, Node

from eductor.graph import value_of
from eductor.graph.effects.bases import base_node, is_view
from eductor.graph.values.meta import set_value
from eductor.passes.lower.repeated.tokens import Types, is_seeded, spelled

Operand = Node | tuple[Node, int]
"""A node outside, or seeds with the index of the one that is read."""


class Region:
    """Consecutive calls, in their order."""

    def __init__(self, calls: Sequence[Node]) -> None:
        self.calls = calls
        self.places = {call: i for i, call in enumerate(calls)}
        self.operands: dict[Operand, int] = {}
        for call in calls:
            for operand in _operands(call):
                if operand not in self.places:
                    self.operands.setdefault(operand, len(self.operands))
        read = [call for call in calls if not call.users.keys() <= self.places.keys()]
        self.views = [call for call in read if is_view(call)]
        """The views that are read outside: they are made again there, as no result may share memory with another value."""
        bases = {base_node(view) for view in self.views} & self.places.keys()
        self.results = sorted(bases.union(call for call in read if not is_view(call)), key=self.places.__getitem__)

    def key(self, types: Types) -> Hashable:
        """Equal for regions that can share a body: the same calls, wired alike, on operands of the same types."""

        def wired(node: Node) -> Hashable:
            place = self.places.get(node)
            return (self.operands[node], types.aligned(node)) if place is None else place

        calls = tuple(
            (call.target, *spelled(call, wired if not is_seeded(call) else lambda node: None), self._seed(call))
            for call in self.calls
        )
        read = tuple(self.places[call] for call in (*self.results, *self.views))
        return calls, tuple(map(types.aligned, self.calls)), read, len(self.results)

    def _seed(self, call: Node) -> Hashable:
        """The operand that is the seed of a draw, and whether it is aligned; None for any other call."""
        if not is_seeded(call):
            return None
        seed = seed_of(call)
        return self.operands[seed], seed[1] % 2

    @property
    def is_callable(self) -> bool:
        """Whether there are operands and results, all of them tensors on one device."""
        if not self.operands or not self.results:
            return False
        values = [value_of(x[0] if isinstance(x, tuple) else x) for x in (*self.operands, *self.results)]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        return len(tensors) == len(values) and len({tensor.device for tensor in tensors}) == 1

    def body(self) -> GraphModule:
        """The calls as a graph of their own, a function from the operands to a tuple of the results."""
        graph, own = Graph(), dict[Operand, Node]()
        for operand, i in self.operands.items():
            own[operand] = graph.placeholder(f"operand_{i}")
            set_value(own[operand], _value(operand))
        for call in self.calls:
            seed = seed_of(call) if is_seeded(call) else None
            own[call] = graph.node_copy(call, own.__getitem__ if seed is None else partial(_given, own[seed]))
            if seed is not None:
                own[call].args = (own[seed], 0, *call.args[2:])
        graph.output(tuple(own[call] for call in self.results))
        return GraphModule(torch.nn.Module(), graph)

    def chains(self) -> Iterator[Node]:
        """The views that are read outside, each after the views in the region that it is a view of."""
        made: set[Node] = set()
        for view in self.views:
            chain = []
            while view in self.places and is_view(view) and view not in made:
                chain.append(view)
                view = view.all_input_nodes[0]
            made.update(chain)
            yield from reversed(chain)


def seed_of(call: Node) -> tuple[Node, int]:
    """The seeds that a draw reads, and which of them."""
    seeds, index = call.args[:2]
    assert isinstance(seeds, Node)
    assert isinstance(index, int)
    return seeds, index


def _given(seed: Node, seeds: Node) -> Node:
    """Stands for the seeds that a call reads: only its own seed is an operand."""
    return seed


def _operands(call: Node) -> Sequence[Operand]:
    return [seed_of(call)] if is_seeded(call) else call.all_input_nodes


def _value(operand: Operand) -> object:
    if isinstance(operand, Node):
        return value_of(operand)
    value = value_of(operand[0])
    with value.fake_mode:
        return value[operand[1] : operand[1] + 1]
