"""Detects what a handler changed that edits the graph by itself."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from eductor.graph import Snapshot
from eductor.graph.reading.bind import packets_of
from eductor.graph.snapshot import subgraphs


@dataclass(frozen=True, slots=True)
class Edit:
    """The edits that a handler made."""

    added: list[Node]
    changed: list[Node]
    erased: list[Node]
    placed: list[Node]
    """Those that are new, changed or moved: their operands may stand after them."""
    is_simple: bool
    """Whether no node was moved, and none is filed under another operator than before."""
    is_deep: bool
    """Whether the body of a higher-order operator was edited."""

    def __bool__(self) -> bool:
        return bool(self.placed or self.erased or self.is_deep or not self.is_simple)


class Seen:
    """A snapshot of a graph, to detect the edits of a handler.

    The whole graph is compared after each handler, but fast: its nodes and their calls are columns that are compared by
    identity, and no Python runs for a node that is unchanged.
    """

    def __init__(self, graph: Graph, *, has_bodies: bool = True) -> None:
        self.graph = graph
        self._nodes = list(graph.nodes)
        self._columns = [list(map(column, self._nodes)) for column in _COLUMNS]
        self._bodies = subgraphs(graph) if has_bodies else {}
        self._then = {path: Snapshot(body.graph) for path, body in self._bodies.items()}

    def again(self) -> tuple[Seen, Edit]:
        """A snapshot of the graph now, and the edits since."""
        now = Seen(self.graph, has_bodies=False)
        old, new = self._nodes, now._nodes
        shorter = min(len(old), len(new))
        first = next(_unlike(old, new), shorter)
        last = min(next(_unlike(reversed(old), reversed(new)), shorter), shorter - first)
        changed = {i for a, b in zip(self._columns, now._columns, strict=True) for i in _unlike(a[:first], b[:first])}
        start, end = len(old) - last, len(new) - last  # from here on, the nodes are the same again
        for a, b in zip(self._columns, now._columns, strict=True):
            changed.update(end + i for i in _unlike(a[start:], b[end:]))
        gone = {old[i]: i for i in range(first, start)}
        was = {i: gone.pop(new[i]) for i in range(first, end) if new[i] in gone}
        for i, at in was.items():
            if any(a[at] is not b[i] for a, b in zip(self._columns, now._columns, strict=True)):
                changed.add(i)
        added = [new[i] for i in range(first, end) if i not in was]
        moved = list(was.values()) != sorted(was.values())
        was |= {i: i if i < first else i - end + start for i in changed if i not in was}
        simple = not moved and all(has_fixed_keys(new[i]) and self._calls(was[i]) == now._calls(i) for i in changed)
        again = [new[i] for i in sorted(changed)]
        placed = new[first:end] if moved else [*added, *again]
        if self._bodies or any(n.op == "get_attr" for n in (*added, *again)):
            now = Seen(self.graph)
        deep = any(p not in now._bodies or not s.is_same(now._bodies[p].graph) for p, s in self._then.items())
        return now, Edit(added, again, list(gone), placed, simple, deep)

    def _calls(self, i: int) -> tuple[Any, Any]:
        """The kind of a node, and what it calls."""
        kinds, targets, *_ = self._columns
        return kinds[i], targets[i]


_COLUMNS = [operator.attrgetter(name) for name in ("op", "target", "args", "kwargs")]


def _unlike(a: Iterable[Any], b: Iterable[Any]) -> Iterator[int]:
    """The positions at which two columns differ."""
    return itertools.compress(itertools.count(), map(operator.is_not, a, b))


def has_fixed_keys(node: Node) -> bool:
    """Whether the index keys of a node depend on its target alone: an erased node has no arguments any more."""
    return node.op not in ("call_function", "call_method", "call_module") or (
        node.op != "call_module" and packets_of(node.target) is not None
    )
