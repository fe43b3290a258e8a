"""The readings of the nodes of one graph, each worked out once, and what can be passed over between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from eductor.graph.effects.node_effects import effect_of
from eductor.graph.reading.bind import bind
from eductor.patterns.language import Tolerance
from eductor.patterns.reading import Inverse, Reading
from eductor.patterns.spellings import Binder, readings_of
from eductor.patterns.transparent import transparent

aten = torch.ops.aten


class Readings:
    """The readings of the nodes of one graph, each worked out once."""

    def __init__(self, bind: Binder = bind) -> None:
        self._bind = bind
        self._known: dict[Node, tuple[Reading, ...]] = {}
        self._inner: dict[tuple[Node, frozenset[Tolerance]], Node | None] = {}

    def of(self, node: Node) -> tuple[Reading, ...]:
        """All readings of a node; the plainest first."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = tuple(readings_of(node, self._bind))
        return found

    def matching(self, value: Any, keys: tuple[Any, ...], tolerated: frozenset[Tolerance]) -> list[Reading]:
        """The readings of a node, or of the inverse of one, as a call of one of the keys."""
        inverted = isinstance(value, Inverse)
        node = value.node if inverted else value
        if not isinstance(node, Node):
            return []
        return [
            r
            for r in self.of(node)
            if r.key in keys and r.inverted is inverted and (r.tolerance is None or r.tolerance in tolerated)
        ]

    def beneath(self, value: Any, tolerated: frozenset[Tolerance]) -> Iterator[tuple[Any, tuple[Node, ...]]]:
        """A value, then what is beneath it if nodes that the tolerances make transparent are passed over."""
        passed: tuple[Node, ...] = ()
        yield value, passed
        while isinstance(value, Node) and (inner := self._beneath(value, tolerated)) is not None:
            passed = (*passed, value)
            value = inner
            yield value, passed

    def innermost(self, node: Node, tolerated: frozenset[Tolerance]) -> Node:
        """What a node stands for, if all that can be passed over is."""
        while (inner := self._beneath(node, tolerated)) is not None:
            node = inner
        return node

    def above(self, node: Node, tolerated: frozenset[Tolerance]) -> Iterator[tuple[Node, tuple[Node, ...]]]:
        """A node, then the transparent nodes that stand for it, each with those that were passed over."""
        pending: list[tuple[Node, tuple[Node, ...]]] = [(node, ())]
        while pending:
            at, passed = pending.pop(0)
            yield at, passed
            pending += [(u, (*passed, u)) for u in at.users if self._stands_for(u, at, tolerated)]

    def _beneath(self, node: Node, tolerated: frozenset[Tolerance]) -> Node | None:
        if (node, tolerated) not in self._inner:
            inner = transparent(node, tolerated)
            # Who writes to a copy makes something of its own of it.
            written = inner is not None and any(node in effect_of(user).writes for user in node.users)
            self._inner[node, tolerated] = None if written else inner
        return self._inner[node, tolerated]

    def _stands_for(self, user: Node, node: Node, tolerated: frozenset[Tolerance]) -> bool:
        if self._beneath(user, tolerated) is node:
            return True
        return "scale" in tolerated and any(r.key is aten.reciprocal for r in self.of(user))
