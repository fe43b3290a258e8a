"""Groups calls that may become one batch: of the same form, and none computed from another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import is_symbolic, is_wrapper_subclass
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, tensor_of
from eductor.passes.batching.limits import gradients, needed, touched
from eductor.passes.batching.rule import BatchCall, BatchRule

Level = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Calls of one rule that are alike and independent of each other, in the order of the graph."""

    rule: BatchRule
    calls: list[BatchCall]
    level: Level


def buckets(graph: GraphView, rewrite: Rewriter, rules: Sequence[BatchRule]) -> list[Bucket]:
    """Groups the calls of the rules by form and level, operands first."""
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


ALONE = No("no other call has the same form and is independent of it")


@dataclass(slots=True)
class _Reader:
    """Reads the calls of a graph, which must not be edited meanwhile."""

    graph: GraphView
    rule_of: dict[Node, BatchRule] = field(default_factory=dict)
    _forms: dict[Node, Any] = field(default_factory=dict)

    def likely(self, rules: Sequence[BatchRule]) -> dict[tuple[str, Level, Any], list[Node]]:
        """Calls that may be alike, by rule, level and result, which are cheap to read. A call alone there is not read."""
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
            return No("its result is dead")
        reading = self.rule_of[node].read(node, bound)
        if isinstance(reading, No):
            return reading
        if any(self._form(operand) is _SUBCLASS for operand in node.all_input_nodes):
            return No("an operand is a wrapper subclass")
        return self._may_be_part(node, result) and BatchCall(node, bound, reading)

    def _may_be_part(self, node: Node, result: torch.Tensor) -> Literal[True] | No:
        """Whether making a result part of a larger one is unobservable; results that escape are copied instead."""
        effects = self.graph.effects
        if effects.place(node) in touched(self.graph):
            return No("its result is written, or an unknown callable may write it")
        if effects.of(node).shares and effects.leaves(node):
            return No("it is a view that escapes")
        return True if is_row_major(result) else No("its result is not row-major")

    def key(self, call: BatchCall) -> Any:
        """What the calls of a batch must have in common."""
        return call.reading.attributes, tuple([None if c is None else self._form(c) for c in call.reading.columns])

    def _form(self, node: Node) -> Any:
        form = self._forms.get(node)
        if form is None:
            form = self._forms[node] = _form_of(tensor_of(node))
        return form


_NO_TENSOR = "no tensor"
_SUBCLASS = "a wrapper subclass"


def _form_of(value: torch.Tensor | None) -> Any:
    if value is None:
        return _NO_TENSOR
    if is_wrapper_subclass(value):
        return _SUBCLASS
    shape = value.shape if not is_symbolic(value) else tuple(map(str, value.shape))
    return value.dtype, value.device, value.layout, value.requires_grad, shape


def _rules_of(graph: GraphView, rules: Sequence[BatchRule]) -> dict[Node, BatchRule]:
    """The rule of each call, for rules with at least two calls."""
    found: dict[Node, BatchRule] = {}
    for rule in rules:
        nodes = [node for key in rule.keys for node in graph.calls(key)]
        if len(nodes) > 1:
            found.update(dict.fromkeys(nodes, rule))
    return found


def levels(graph: GraphView, rule_of: dict[Node, BatchRule]) -> list[tuple[Node, Level]]:
    """The region of each call, and how many calls the longest path above it has: calls of equal level are independent.

    The second number counts calls that are not pointwise, the third the pointwise ones since: so one more of these in one
    of two branches does not separate the calls after it. Batching calls of equal level keeps all other levels valid.
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
