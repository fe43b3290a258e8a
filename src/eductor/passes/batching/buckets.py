"""Which calls may be computed at once: alike in everything, and none of them computed from another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import is_symbolic, is_wrapper_subclass
from eductor.graph.no import No
from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import is_row_major, tensor_of
from eductor.graph.view import GraphView
from eductor.passes.batching.layout import gradients, needed, touched
from eductor.passes.batching.rule import BatchCall, BatchRule

Level = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Calls of one rule that are alike and independent of each other, in the order of the graph."""

    rule: BatchRule
    calls: list[BatchCall]
    level: Level


def buckets(graph: GraphView, rewrite: Rewriter, rules: Sequence[BatchRule]) -> list[Bucket]:
    """All calls of the rules, alike ones together, operands first."""
    found: dict[Any, Bucket] = {}
    reader = _Reader(graph)
    for (name, level, form), nodes in reader.likely(rules).items():
        with rewrite.rule(name):
            if len(nodes) == 1:
                rewrite.reject(ALONE, *nodes)
                continue
            followed = gradients(graph)
            for node in nodes:
                call = reader.call(node)
                if isinstance(call, BatchCall):
                    key = (name, level, form, followed.get(node), reader.key(call))
                    found.setdefault(key, Bucket(reader.rule_of[node], [], level)).calls.append(call)
                else:
                    rewrite.reject(call, node)
    return sorted(found.values(), key=lambda bucket: bucket.level)


ALONE = No("no other call is of the same form and independent of it")


@dataclass(slots=True)
class _Reader:
    """Reads the calls of a graph that nobody edits meanwhile."""

    graph: GraphView
    rule_of: dict[Node, BatchRule] = field(default_factory=dict)
    _forms: dict[Node, Any] = field(default_factory=dict)

    def likely(self, rules: Sequence[BatchRule]) -> dict[tuple[str, Level, Any], list[Node]]:
        """Calls that may be alike, by what is cheap to see: rule, level, result. What is alone there is not looked at."""
        self.rule_of = _rules_of(self.graph, rules)
        groups: dict[tuple[str, Level, Any], list[Node]] = {}
        for node, level in levels(self.graph, self.rule_of) if self.rule_of else ():
            groups.setdefault((self.rule_of[node].name, level, self._form(node)), []).append(node)
        return groups

    def call(self, node: Node) -> BatchCall | No:
        """A call as its rule reads it, or why it cannot be batched."""
        bound, result = self.graph.bind(node), tensor_of(node)
        if not isinstance(bound, Bound):
            return bound
        if result is None:
            return No("its result is not known to be a tensor")
        if node not in needed(self.graph):
            return No("nobody needs its result")
        reading = self.rule_of[node].read(node, bound)
        if isinstance(reading, No):
            return reading
        if any(self._form(operand) is _OF_ITS_OWN for operand in node.all_input_nodes):
            return No("an operand is a tensor of a class of its own")
        return self._is_unnoticed(node, result) and BatchCall(node, bound, reading)

    def _is_unnoticed(self, node: Node, result: torch.Tensor) -> Literal[True] | No:
        """Whether a result may be a part of a larger one unnoticed; results that leave the graph are copied instead."""
        effects = self.graph.effects
        if effects.place(node) in touched(self.graph):
            return No("its result is written, or an unknown callable may write it")
        if effects.of(node).shares and effects.leaves(node):
            return No("it is a view that leaves the graph")
        return True if is_row_major(result) else No("its result is not laid out row by row")

    def key(self, call: BatchCall) -> Any:
        """What calls that are batched agree in."""
        return call.reading.attributes, tuple([None if c is None else self._form(c) for c in call.reading.columns])

    def _form(self, node: Node) -> Any:
        form = self._forms.get(node)
        if form is None:
            form = self._forms[node] = _form_of(tensor_of(node))
        return form


_NO_TENSOR = "no tensor"
_OF_ITS_OWN = "a tensor of a class of its own"


def _form_of(value: torch.Tensor | None) -> Any:
    if value is None:
        return _NO_TENSOR
    if is_wrapper_subclass(value):
        return _OF_ITS_OWN
    shape = value.shape if not is_symbolic(value) else tuple(map(str, value.shape))
    return value.dtype, value.device, value.layout, value.requires_grad, shape


def _rules_of(graph: GraphView, rules: Sequence[BatchRule]) -> dict[Node, BatchRule]:
    """The calls of each rule that has at least two."""
    found: dict[Node, BatchRule] = {}
    for rule in rules:
        nodes = [node for key in rule.keys for node in graph.calls(key)]
        if len(nodes) > 1:
            found.update(dict.fromkeys(nodes, rule))
    return found


def levels(graph: GraphView, rule_of: dict[Node, BatchRule]) -> list[tuple[Node, Level]]:
    """The region of each call, and how many calls stand above it on the longest way: equals are independent.

    The second number counts calls that are no pointwise operators, the third the pointwise ones since: so one of these
    more in one of two branches does not tell apart what follows. Batching equals keeps the levels of all others true.
    """
    level: dict[Node, tuple[int, int]] = {}
    found: list[tuple[Node, Level]] = []
    region = 0
    effect_of = graph.effects.of
    for node in graph.nodes:
        operands = node.all_input_nodes
        if not operands:
            level[node] = 0, 0
            region += bool(effect_of(node).barrier)
            continue
        heavy, full = max(map(level.__getitem__, operands))
        rule = rule_of.get(node)
        if rule is not None:
            heavy, full = (heavy, full + 1) if rule.is_pointwise else (heavy + 1, 0)
            found.append((node, (region, heavy, full)))
        level[node] = heavy, full
        region += bool(effect_of(node).barrier)
    return found
