"""Caches the readings of the nodes of one graph, and the transparent nodes between them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import bind, effect_of
from eductor.patterns.language.pattern import Tolerance
from eductor.patterns.match.call_reading import Inverse, Reading
from eductor.patterns.match.spellings import Binder, readings_of, sources
from eductor.patterns.match.transparent import transparent

aten = torch.ops.aten


@functools.lru_cache(maxsize=1 << 10)
def _sources(keys: tuple[Any, ...], tolerated: frozenset[Tolerance]) -> frozenset[Any]:
    """The operators whose calls may read as a call of one of the keys."""
    return frozenset(source for key in keys for source in sources(key, tolerated))


class Readings:
    """The readings of the nodes of one graph, each worked out once for as long as its node has the same arguments."""

    def __init__(self, bind: Binder = bind) -> None:
        self._bind = bind
        self._known: dict[Node, tuple[Any, Any, tuple[Reading, ...]]] = {}
        self._inner: dict[tuple[Node, frozenset[Tolerance]], tuple[Any, Node | None]] = {}

    def of(self, node: Node) -> tuple[Reading, ...]:
        """All readings of a node; the plainest first."""
        known = self._known.get(node)
        if known is None or known[0] is not node.args or known[1] is not node.kwargs:
            known = self._known[node] = (node.args, node.kwargs, tuple(readings_of(node, self._bind)))
        return known[2]

    def matching(
        self,
        value: Any,
        keys: tuple[Any, ...],
        tolerated: frozenset[Tolerance],
        overloads: frozenset[OpOverload] | None = None,
    ) -> list[Reading]:
        """The readings of a node, or of the inverse of one, as a call of one of the keys.

        Where overloads are given, as a call of one of them: a reading in another spelling stands for all.
        """
        inverted = isinstance(value, Inverse)
        node = value.node if inverted else value
        if not isinstance(node, Node):
            return []
        target = node.target
        if isinstance(target, OpOverload):
            held = _sources(keys, tolerated)
            if target.overloadpacket not in held and target not in held:
                return []
        return [
            r
            for r in self.of(node)
            if r.key in keys
            and r.inverted is inverted
            and (r.tolerance is None or r.tolerance in tolerated)
            and (overloads is None or r.op is None or r.op in overloads)
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
        while node.op != "placeholder" and (inner := self._beneath(node, tolerated)) is not None:
            node = inner
        return node

    def above(self, node: Node, tolerated: frozenset[Tolerance]) -> Iterator[tuple[Node, tuple[Node, ...]]]:
        """A node, then the transparent nodes that stand for it, each with those that were passed over."""
        yield node, ()
        pending: list[tuple[Node, tuple[Node, ...]]] = [(node, ())]
        while pending:
            at, passed = pending.pop(0)
            found = [(u, (*passed, u)) for u in at.users if self._stands_for(u, at, tolerated)]
            yield from found
            pending += found

    def _beneath(self, node: Node, tolerated: frozenset[Tolerance]) -> Node | None:
        known = self._inner.get((node, tolerated))
        if known is None or known[0] is not node.args:
            known = self._inner[node, tolerated] = (node.args, transparent(node, tolerated))
        inner = known[1]
        # A copy that is written to is a value of its own.
        written = inner is not None and any(node in effect_of(user).writes for user in node.users)
        return None if written else inner

    def _stands_for(self, user: Node, node: Node, tolerated: frozenset[Tolerance]) -> bool:
        if self._beneath(user, tolerated) is node:
            return True
        return "scale" in tolerated and any(r.key is aten.reciprocal for r in self.of(user))
