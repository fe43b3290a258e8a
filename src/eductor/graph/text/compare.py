"""Structural equality of two graphs, and their alignment for a diff."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from eductor.graph.snapshot import Snapshot
from eductor.graph.text.printer import path_of, statement
from eductor.graph.text.structure import attribute_hash


def is_equal(a: Graph, b: Graph) -> bool:
    """Whether two graphs are equal, except for the names of their nodes."""
    return first_difference(a, b) is None


def first_difference(a: Graph, b: Graph) -> str | None:
    """A description of the first pair of nodes that differ; None if the graphs are equal."""
    left, right = list(a.nodes), list(b.nodes)
    twin: dict[Node, Node] = {}
    for x, y in zip(left, right, strict=False):
        same_target = _same_attribute(x, y) if x.op == "get_attr" else x.target == y.target
        same_target = same_target or x.op in ("placeholder", "output")
        if x.op != y.op or not same_target or not _same((x.args, x.kwargs), (y.args, y.kwargs), twin):
            return f"`{_statement(x)}` and `{_statement(y)}`"
        twin[x] = y
    if len(left) != len(right):
        longer, which = (left, "first") if len(left) > len(right) else (right, "second")
        return f"only the {which} graph has `{_statement(longer[min(len(left), len(right))])}`"
    return None


def is_as_before(before: Snapshot, graph: Graph) -> bool:
    """Whether a graph is unchanged since the snapshot, except for the names of its nodes."""
    if len(before) != len(graph.nodes):
        return False
    twin: dict[Node, Node] = {}
    is_untouched = True
    for (old, op, target, args, kwargs), node in zip(before.rows(), graph.nodes, strict=True):
        twin[old] = node
        is_untouched = is_untouched and old is node
        if is_untouched and args is node.args and kwargs is node.kwargs and target is node.target:
            continue
        same_target = op == node.op and (target == node.target or op in ("placeholder", "output"))
        if not same_target or not _same((args, kwargs), (node.args, node.kwargs), twin):
            return False
    return before.has_same_subgraphs(graph)


def _same_attribute(x: Node, y: Node) -> bool:
    """Whether two attributes are equal: by their values if both graphs have a module, else by name."""
    if y.op != "get_attr" or x.graph.owning_module is None or y.graph.owning_module is None:
        return bool(x.target == y.target)
    return attribute_hash(x) == attribute_hash(y)


def same_value(a: Any, b: Any) -> bool:
    """Whether two arguments are the same: sequences by their elements, numbers with their type and sign."""
    return _same(a, b, None)


def _same(a: Any, b: Any, twin: dict[Node, Node] | None) -> bool:
    if a is b and twin is None:
        return True
    if isinstance(a, Node):
        return a is b if twin is None else twin.get(a) is b
    if isinstance(a, (list, tuple)):
        return (
            isinstance(b, (list, tuple))
            and len(a) == len(b)
            and all(_same(x, y, twin) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(_same(a[k], b[k], twin) for k in a)
    if isinstance(a, slice):
        return isinstance(b, slice) and _same((a.start, a.stop, a.step), (b.start, b.stop, b.step), twin)
    if isinstance(a, float) and isinstance(b, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (math.isnan(a) and math.isnan(b)))
    return type(a) is type(b) and bool(a == b)


def _statement(node: Node) -> str:
    return f"{node.name}, an input" if node.op == "placeholder" else statement(node)


@dataclass(frozen=True, slots=True)
class Pair:
    """A node before, a node after, or one of both: `same`, `changed`, `moved`, `removed` or `added`."""

    before: Node | None
    after: Node | None
    status: str


def align(before: Graph, after: Graph) -> list[Pair]:
    """Pairs the nodes of two graphs: by name, then by equal calls on paired operands.

    The pairs are in the order of the second graph, with removed nodes where they were.
    """
    left, right = list(before.nodes), list(after.nodes)
    names = {n.name: n for n in left}
    twins: dict[Node, Node] = {}
    for node in right:
        named = names.get(node.name)
        if named is not None and named.op == node.op:
            twins[node] = named
    taken = set(twins.values())
    free: dict[str, list[Node]] = {}
    for node in left:
        if node not in taken:
            free.setdefault(_label(node, {}), []).append(node)
    for node in right:
        if node not in twins and free.get(label := _label(node, twins)):
            twins[node] = free[label].pop(0)
    partner = {old: new for new, old in twins.items()}
    position = {n: i for i, n in enumerate(left)}
    kept = _increasing([position[twins[n]] for n in right if n in twins])
    pairs: list[Pair] = []
    removed = [n for n in left if n not in partner]
    for node in right:
        old = twins.get(node)
        if old is None:
            pairs.append(Pair(None, node, "added"))
            continue
        while removed and position[removed[0]] < position[old] and position[old] in kept:
            pairs.append(Pair(removed.pop(0), None, "removed"))
        same = _label(old, {}) == _label(node, twins)
        moved = position[old] not in kept
        pairs.append(Pair(old, node, "moved" if moved else "same" if same else "changed"))
    return pairs + [Pair(n, None, "removed") for n in removed]


def _label(node: Node, twins: dict[Node, Node]) -> str:
    """What a node computes, in the names of the first graph."""

    def named(value: Any) -> Any:
        if isinstance(value, Node):
            return f"%{twins.get(value, value).name}"
        if isinstance(value, (list, tuple)):
            return [named(v) for v in value]
        if isinstance(value, dict):
            return {k: named(v) for k, v in value.items()}
        return value

    target = node.target if isinstance(node.target, str) else path_of(node.target)
    target = "" if node.op in ("placeholder", "output") else target
    return f"{node.op} {target} {named(node.args)} {named(node.kwargs)}"


def _increasing(values: list[int]) -> set[int]:
    """The members of a longest increasing subsequence: the nodes that kept their order."""
    tails: list[int] = []
    previous: dict[int, int | None] = {}
    for value in values:
        i = bisect.bisect_left(tails, value)
        previous[value] = tails[i - 1] if i else None
        if i == len(tails):
            tails.append(value)
        else:
            tails[i] = value
    kept: set[int] = set()
    value_at: int | None = tails[-1] if tails else None
    while value_at is not None:
        kept.add(value_at)
        value_at = previous[value_at]
    return kept
