"""Which calls may be computed at once: alike in everything, and none of them computed from another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import is_wrapper_subclass
from eductor.graph.bind import Bound
from eductor.graph.meta import is_row_major, tensor_of
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView, key_of
from eductor.passes.pre_grad.batching.layout import gradients, needed, touched
from eductor.passes.pre_grad.batching.rule import Call, Rule


@dataclass(frozen=True, slots=True)
class Bucket:
    """Calls of one rule that are alike and independent of each other, in the order of the graph."""

    rule: Rule
    calls: list[Call]
    level: tuple[int, int, int]


def buckets(graph: GraphView, rewrite: Rewriter, rules: Sequence[Rule]) -> list[Bucket]:
    """All calls of the rules, alike ones together, operands first."""
    found: dict[Any, Bucket] = {}
    for rule, nodes, level, form in _likely(graph, rewrite, rules):
        followed = gradients(graph)
        for node in nodes:
            call = _call(graph, rule, node)
            if isinstance(call, Call):
                key = (rule.name, level, form, followed.get(node), _key(call))
                found.setdefault(key, Bucket(rule, [], level)).calls.append(call)
            else:
                with rewrite.rule(rule.name):
                    rewrite.reject(call, node)
    return sorted(found.values(), key=lambda bucket: bucket.level)


def _likely(
    graph: GraphView, rewrite: Rewriter, rules: Sequence[Rule]
) -> Iterator[tuple[Rule, list[Node], tuple[int, int, int], Any]]:
    """Calls that may be alike, by what is cheap to see: rule, level, result. What is alone there is not looked at."""
    rule_of = _rules_of(graph, rules)
    groups: dict[Any, list[Node]] = {}
    for node, level in _levels(graph, rule_of) if rule_of else ():
        groups.setdefault((rule_of[node].name, level, _form(tensor_of(node))), []).append(node)
    for (name, level, form), nodes in groups.items():
        if len(nodes) > 1:
            yield rule_of[nodes[0]], nodes, level, form
        else:
            with rewrite.rule(name):
                rewrite.reject(ALONE, *nodes)


ALONE = "no other call is of the same form and independent of it"


def _rules_of(graph: GraphView, rules: Sequence[Rule]) -> dict[Node, Rule]:
    """The calls of each rule that has at least two."""
    found: dict[Node, Rule] = {}
    for rule in rules:
        nodes = [node for key in dict.fromkeys(map(key_of, rule.operators)) for node in graph.calls(key)]
        if len(nodes) > 1:
            found.update(dict.fromkeys(nodes, rule))
    return found


def _call(graph: GraphView, rule: Rule, node: Node) -> Call | str:
    bound, result = graph.bind(node), tensor_of(node)
    if not isinstance(bound, Bound):
        return bound.reason
    if result is None:
        return "its result is not known to be a tensor"
    if node not in needed(graph):
        return "nobody needs its result"
    reading = rule.read(node, bound)
    if isinstance(reading, str):
        return reading
    if any(is_wrapper_subclass(v) for v in map(tensor_of, node.all_input_nodes) if v is not None):
        return "an operand is a tensor of a class of its own"
    reason = _noticed(graph, node, result)
    return reason or Call(node, bound, reading)


def _noticed(graph: GraphView, node: Node, result: torch.Tensor) -> str:
    """Why somebody would notice that a result is a part of a larger one; results that leave are copied instead."""
    effects = graph.effects
    if effects.place(node) in touched(graph):
        return "its result is written, or an unknown callable may write it"
    if effects.of(node).shares and effects.leaves(node):
        return "it is a view that leaves the graph"
    return "" if is_row_major(result) else "its result is not laid out row by row"


def _levels(graph: GraphView, rule_of: dict[Node, Rule]) -> list[tuple[Node, tuple[int, int, int]]]:
    """The region of each call, and how many calls stand above it on the longest way: equals are independent.

    The second number counts calls that are no pointwise operators, the third the pointwise ones since: so one of these
    more in one of two branches does not tell apart what follows. Batching equals keeps the levels of all others true.
    """
    level: dict[Node, tuple[int, int]] = {}
    found: list[tuple[Node, tuple[int, int, int]]] = []
    region = 0
    effect_of = graph.effects.of
    for node in graph.nodes:
        heavy, full = max((level[n] for n in node.all_input_nodes), default=(0, 0))
        rule = rule_of.get(node)
        if rule is not None:
            heavy, full = (heavy, full + 1) if rule.is_pointwise else (heavy + 1, 0)
            found.append((node, (region, heavy, full)))
        level[node] = heavy, full
        region += bool(effect_of(node).barrier)
    return found


def _key(call: Call) -> Any:
    return call.reading.attributes, tuple([None if c is None else _form(tensor_of(c)) for c in call.columns])


def _form(value: torch.Tensor | None) -> Any:
    if value is None:
        return None
    shape = tuple([size if type(size) is int else str(size) for size in value.shape])
    return value.dtype, value.device, value.layout, value.requires_grad, shape
