"""States of a graph as ordered nodes by id, and the differences between states."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

NodeData = dict[str, Any]
Delta = dict[str, Any]


class State:
    """Ordered nodes by id, as a linked list, so that edits take constant time."""

    def __init__(self, nodes: Iterable[NodeData] = ()) -> None:
        self.nodes: dict[int, NodeData] = {}
        self._after: dict[int | None, int | None] = {None: None}
        self._before: dict[int | None, int | None] = {None: None}
        for node in nodes:
            self._add(self._before[None], node)

    def __iter__(self) -> Iterator[int]:
        at = self._after[None]
        while at is not None:
            yield at
            at = self._after[at]

    def before(self, id: int) -> int | None:
        """The id before an id; None for the first one."""
        return self._before[id]

    def apply(self, delta: Delta) -> None:
        """Applies a difference, in the order that the schema defines."""
        for id in delta["removed"]:
            self._unlink(id)
            del self.nodes[id]
        for node in delta["changed"]:
            self.nodes[node["id"]] = node
        for added in delta["added"]:
            self._add(added["after"], added["node"])
        for moved in delta["moved"]:
            self._unlink(moved["id"])
            self._link(moved["after"], moved["id"])

    def _add(self, after: int | None, node: NodeData) -> None:
        self.nodes[node["id"]] = node
        self._link(after, node["id"])

    def _link(self, after: int | None, id: int) -> None:
        following = self._after[after]
        self._after[after], self._before[id] = id, after
        self._after[id], self._before[following] = following, id

    def _unlink(self, id: int) -> None:
        before, after = self._before.pop(id), self._after.pop(id)
        self._after[before], self._before[after] = after, before


def whole_delta(state: State, target: Mapping[int, NodeData]) -> Delta:
    """The difference from a state to the ordered nodes of a target; applies it to the state."""
    delta: Delta = {
        "removed": [id for id in state if id not in target],
        "changed": [n for id, n in target.items() if id in state.nodes and not is_alike(state.nodes[id], n)],
        "added": [],
        "moved": [],
    }
    previous: int | None = None
    for id, node in target.items():
        if id not in state.nodes:
            delta["added"].append({"after": previous, "node": node})
        previous = id
    state.apply(delta)
    places = {id: i for i, id in enumerate(target)}
    order = list(state)
    stays = {order[i] for i in _longest_rise([places[id] for id in order])}
    previous = None
    moves = []
    for id in target:
        if id not in stays:
            moves.append({"id": id, "after": previous})
        previous = id
    state.apply({"removed": [], "changed": [], "added": [], "moved": moves})
    return {**delta, "moved": moves}


def local_delta(state: State, erased: Sequence[int], live: Sequence[tuple[int | None, NodeData]]) -> Delta:
    """The difference made by a few edits: erased nodes, and others, in order, each with its predecessor; applies it."""
    delta: Delta = {
        "removed": [id for id in erased if id in state.nodes],
        "changed": [n for _, n in live if n["id"] in state.nodes and not is_alike(state.nodes[n["id"]], n)],
        "added": [{"after": after, "node": n} for after, n in live if n["id"] not in state.nodes],
        "moved": [],
    }
    state.apply(delta)
    for after, node in live:
        if state.before(node["id"]) != after:
            move = {"id": node["id"], "after": after}
            state.apply({"removed": [], "changed": [], "added": [], "moved": [move]})
            delta["moved"].append(move)
    return delta


def is_alike(a: NodeData, b: NodeData) -> bool:
    """Whether two nodes have equal data."""
    return a is b or a == b


def _longest_rise(numbers: Sequence[int]) -> list[int]:
    """The indices of a longest increasing subsequence; all others must have moved."""
    ends: list[int] = []
    places: list[int] = []
    earlier: list[int] = []
    for i, number in enumerate(numbers):
        at = bisect_left(ends, number)
        ends[at : at + 1] = [number]
        places[at : at + 1] = [i]
        earlier.append(places[at - 1] if at else -1)
    found = []
    i = places[-1] if places else -1
    while i >= 0:
        found.append(i)
        i = earlier[i]
    return found[::-1]
