"""Finds the nodes of a graph that compute the same as the nodes of a reference: the same calls on the same values.

Spellings that give the same bits are one, and nodes that change nothing are passed over on both sides: a graph is cleaned
before anybody looks for the reference in it. Sizes are compared by what they are, not by how they are computed.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.compat import sort_key
from eductor.graph import GraphView, effect_of, known_equal, tensor_of, value_of
from eductor.graph.effects.order import ancestors
from eductor.graph.text.structure import attribute_hash
from eductor.graph.values.meta import results_of
from eductor.patterns.language.pattern import Tolerance
from eductor.patterns.match.call_reading import Reading
from eductor.patterns.match.constants import has_constant, plain
from eductor.patterns.match.node_readings import Readings
from eductor.patterns.match.spellings import sources
from eductor.patterns.match.transparent import transparent

_NOTHING: frozenset[Tolerance] = frozenset()
_FURTHER = 8
"""How many more nodes there may be between a tangent and its first use than the reference has."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The graph of a function; with its backward, where a tangent is its last input."""

    module: GraphModule
    is_joint: bool
    readings: Readings = field(default_factory=Readings)

    @functools.cached_property
    def inputs(self) -> list[Node]:
        found = self.module.graph.find_nodes(op="placeholder")
        return found[:-1] if self.is_joint else found

    @functools.cached_property
    def tangent(self) -> Node | None:
        return self.module.graph.find_nodes(op="placeholder")[-1] if self.is_joint else None

    @functools.cached_property
    def results(self) -> list[Any]:
        """The value, then the gradients of the inputs, None for those that get none."""
        return results_of(self.module)

    @functools.cached_property
    def drawn(self) -> set[Node]:
        """The calls that draw random numbers."""
        return {n for n in self.module.graph.nodes if effect_of(n).random}

    @functools.cached_property
    def idle(self) -> dict[Node, Node]:
        """The calls that change nothing, with their operands."""
        operands = ((n, transparent(n, _NOTHING)) for n in self.module.graph.nodes)
        return {n: operand for n, operand in operands if operand is not None}

    @functools.cached_property
    def forward(self) -> list[Node]:
        """What the value is computed from."""
        wanted = ancestors(self.results[:1])
        return [n for n in self.module.graph.nodes if n in wanted and _is_computed(n)]

    @functools.cached_property
    def saved(self) -> list[Node]:
        """What the backward computes without the tangent."""
        known = {*self.forward, *self.late}
        return [n for n in self.module.graph.nodes if n not in known and _is_computed(n)]

    @functools.cached_property
    def late(self) -> list[Node]:
        """What is computed from the tangent."""
        found: dict[Node, None] = {}
        for node in self.module.graph.nodes:
            if _is_computed(node) and any(n is self.tangent or n in found for n in node.all_input_nodes):
                found[node] = None
        return list(found)


class Congruence:
    """A reference and a graph, as far as they are the same. Nodes of the graph that are not `allowed` are no part of it."""

    def __init__(
        self, graph: GraphView, reference: Reference, inputs: Sequence[Node], allowed: Callable[[Node], bool]
    ) -> None:
        self.reference = reference
        self.matched: set[Node] = set()
        self._graph = graph
        self._allowed = allowed
        self._readings = Readings()
        self._twins: dict[Node, list[Node]] = {p: [n] for p, n in zip(reference.inputs, inputs, strict=True)}
        self._follow(reference.forward)

    @property
    def missing(self) -> Node | None:
        """The first node that the value of the reference is computed from and that the graph does not have."""
        return next((n for n in self.reference.forward if holds_tensors(n) and not self.twins(n)), None)

    def twins(self, node: Any) -> list[Node]:
        """The nodes of the graph that compute what a node of the reference does."""
        return self._twins.get(node, [])

    def with_tangents(self) -> Iterator[tuple[Node, Congruence]]:
        """Nodes that may be the tangent, those next to their use first, each with what agrees if it is."""
        self._follow(self.reference.saved)
        for tangent in dict.fromkeys(self._tangents()):
            other = copy.copy(self)
            assert self.reference.tangent is not None
            other.matched, other._twins = set(self.matched), {**self._twins, self.reference.tangent: [tangent]}
            other._follow(self.reference.late)
            yield tangent, other

    def source(self, node: Node) -> Node:
        """What a node stands for, if all that changes nothing is passed over."""
        return self._readings.innermost(node, _NOTHING)

    def _follow(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if holds_tensors(node):
                self._twins[node] = list(self._found(node))

    def _found(self, node: Node) -> Iterator[Node]:
        is_random = node in self.reference.drawn
        for candidate in self._candidates(node):
            passed = self._agreeing(candidate, self._reading(node))
            if passed is None or (is_random and candidate in self.matched):
                continue
            self.matched.add(candidate)
            self.matched.update(n for n in passed if self._allowed(n))
            yield candidate
            if is_random:  # each draw is one of its own
                return
        yield from self.twins(self.reference.idle.get(node))

    def _reading(self, node: Node) -> Reading | None:
        found = self.reference.readings.of(node)
        return found[0] if found else None

    def _candidates(self, node: Node) -> list[Node]:
        """The nodes of the graph that may compute the same, in their order."""
        if node.op == "get_attr":
            return [n for n in self._graph.graph.find_nodes(op="get_attr") if attribute_hash(n) == attribute_hash(node)]
        operand = next((n for n in node.all_input_nodes if holds_tensors(n)), None)
        reading = self._reading(node)
        if operand is None:
            keys = sources(reading.key, _NOTHING) if reading is not None else ()
            found = {n for key in keys for n in self._graph.calls(key)}
        else:
            above = (at for twin in self.twins(operand) for at, _ in self._readings.above(twin, _NOTHING))
            found = {user for at in above for user in at.users}
        return sorted(filter(self._allowed, found), key=sort_key)

    def _agreeing(self, candidate: Node, wanted: Reading | None) -> list[Node] | None:
        """What a candidate passes over on the way to its operands, if it is the wanted call on the wanted values."""
        if wanted is None:
            return []
        for got in self._readings.of(candidate):
            is_exact = got.tolerance is None and not got.inverted
            if is_exact and got.key == wanted.key and got.parameters.names == wanted.parameters.names:
                passed: list[Node] = []
                if all(self._same(want, got, (name,), passed) for name, want in _named(wanted)):
                    return passed
        return None

    def _same(self, want: Any, reading: Reading, place: tuple[int | str, ...], passed: list[Node]) -> bool:
        value = reading.at(place[0]) if len(place) == 1 else reading.at(place[0])[place[1]]
        if isinstance(want, Node) and holds_tensors(want):
            for at, through in self._readings.beneath(value, _NOTHING):
                if at in self.twins(want):
                    passed.extend(through)
                    return True
            return False
        if isinstance(want, (list, tuple)) and any(isinstance(x, Node) and holds_tensors(x) for x in want):
            same_length = isinstance(value, (list, tuple)) and len(value) == len(want)
            return same_length and all(self._same(x, reading, (*place, i), passed) for i, x in enumerate(want))
        return bool(has_constant(reading, place, plain(want)))

    def _tangents(self) -> Iterator[Node]:
        """What stands in the graph where the reference combines its tangent with a value that is known."""
        late = {self.reference.tangent, *self.reference.late}
        for node in self.reference.late:
            reading = self._reading(node)
            known = [n for n in node.all_input_nodes if n not in late and self.twins(n)]
            if not known or reading is None:
                continue
            at = [name for name, value in _named(reading) if isinstance(value, Node) and value in late]
            users = {u for n in known for twin in self.twins(n) for u in self._users(twin)}
            for user in sorted(users, key=sort_key):
                for got in self._readings.of(user):
                    if got.key == reading.key and got.parameters.names == reading.parameters.names:
                        yield from (t for name in at for t in self._beneath(got.at(name)))

    def _users(self, node: Node) -> Iterator[Node]:
        for at, _ in self._readings.above(node, _NOTHING):
            yield from filter(self._allowed, at.users)

    def _beneath(self, value: Any) -> Iterator[Node]:
        """A value, and what it is made of alone, as far as it could be the tangent."""
        wanted = tensor_of(self.reference.tangent)
        for _ in range(len(self.reference.late) + _FURTHER):
            tensor = tensor_of(value) if isinstance(value, Node) else None
            if tensor is None or wanted is None:
                return
            if tensor.dtype == wanted.dtype and known_equal(tuple(tensor.shape), tuple(wanted.shape)):
                yield value
            operands = [n for n in value.all_input_nodes if holds_tensors(n)]
            if len(operands) != 1:
                return
            (value,) = operands


def _named(reading: Reading) -> Iterator[tuple[str, Any]]:
    return zip(reading.parameters.names, reading.values, strict=True)


def _is_computed(node: Node) -> bool:
    return node.op not in ("placeholder", "output")


def holds_tensors(node: Node) -> bool:
    """Whether a value is a tensor, or several; sizes are none."""
    return isinstance(value_of(node), (torch.Tensor, list, tuple))
