"""The minimum cut of a network, by Dinic's algorithm, with integers of any size.

Distances are counted backwards from the sink along residual arcs. The last search, which no longer reaches the source,
finds exactly the vertices that can still reach the sink: of all minimum cuts, the one with the fewest vertices on the
sink's side, whatever the flow.

Each round augments paths of one length only, and a long chain has paths of all lengths. So a sweep over the vertices
comes first: in a network numbered in topological order it leaves few augmenting paths.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that separates source and sink."""

    capacity: int | None
    """The total of the arcs from the source's side to the sink's; None if no finite cut separates them."""
    is_behind: bytes
    """For each vertex, whether it is on the sink's side."""


class Network:
    """Vertices by number, and arcs with capacities.

    Arcs are numbers as well: arc 2n + 1 is the reverse of arc 2n. The arcs that leave a vertex are linked from the last to
    the first: everything is in flat lists of numbers, which cost the garbage collector nothing.
    """

    def __init__(self, vertices: int) -> None:
        self._last = [-1] * vertices
        self._previous: list[int] = []
        self._heads: list[int] = []
        self._capacities: list[int | None] = []

    def add(self, tail: int, head: int, capacity: int | None) -> None:
        """Adds an arc; the capacity None is infinite."""
        arc = len(self._heads)
        self._previous.append(self._last[tail])
        self._last[tail] = arc
        self._previous.append(self._last[head])
        self._last[head] = arc + 1
        self._heads += (head, tail)
        self._capacities += (capacity, 0)

    def cheapest_cut(self, source: int, sink: int) -> Cut:
        """The minimum cut; among several, the one with the fewest vertices on the sink's side."""
        total = sum(capacity for capacity in self._capacities if capacity is not None)
        room = [total + 1 if capacity is None else capacity for capacity in self._capacities]
        flow = self._sweep(room, source, sink, total + 1)
        while flow <= total:
            distances = self._distances(room, source, sink)
            if distances[source] < 0:
                return Cut(flow, bytes(distance >= 0 for distance in distances))
            flow += self._blocking_flow(room, distances, source, sink)
        return Cut(None, bytes(len(self._last)))

    # ---------------------------------------------------------------------------------------------- the initial flow

    def _sweep(self, room: list[int], source: int, sink: int, most: int) -> int:
        """A flow from lower to higher numbers only, found in linear time, however long its paths are."""
        can = self._limits(room, source, sink, most)
        has = [0] * len(can)
        has[source] = can[source]
        for tail in range(source, sink):
            arc = self._last[tail]
            while has[tail] and arc >= 0:
                head = self._heads[arc]
                if tail < head <= sink and room[arc]:
                    self._move(room, has, arc, min(has[tail], room[arc], can[head] - has[head]))
                arc = self._previous[arc]
        for head in range(sink - 1, source, -1):  # excess flows back
            arc = self._last[head]
            while has[head] and arc >= 0:
                if arc & 1 and self._heads[arc] < head:
                    self._move(room, has, arc, min(has[head], room[arc]))
                arc = self._previous[arc]
        return has[sink]

    def _limits(self, room: list[int], source: int, sink: int, most: int) -> list[int]:
        """For each vertex, an amount that no flow from it to the sink exceeds."""
        limits = [0] * len(self._last)
        limits[sink] = most
        for tail in range(sink - 1, source - 1, -1):
            limit, arc = 0, self._last[tail]
            while arc >= 0 and limit < most:
                head = self._heads[arc]
                if tail < head <= sink:
                    limit += min(room[arc], limits[head])
                arc = self._previous[arc]
            limits[tail] = min(limit, most)
        return limits

    def _move(self, room: list[int], has: list[int], arc: int, amount: int) -> None:
        room[arc] -= amount
        room[arc ^ 1] += amount
        has[self._heads[arc ^ 1]] -= amount
        has[self._heads[arc]] += amount

    # -------------------------------------------------------------------------------------------- the augmenting rounds

    def _distances(self, room: list[int], source: int, sink: int) -> list[int]:
        """Distances to the sink along residual arcs, up to that of the source; -1 if the sink is unreachable."""
        heads, previous = self._heads, self._previous
        distances = [-1] * len(self._last)
        distances[sink] = distance = 0
        frontier = [sink]
        while frontier and distances[source] < 0:
            distance += 1
            found = []
            for vertex in frontier:
                arc = self._last[vertex]
                while arc >= 0:
                    if distances[heads[arc]] < 0 and room[arc ^ 1]:
                        distances[heads[arc]] = distance
                        found.append(heads[arc])
                    arc = previous[arc]
            frontier = found
        return distances

    def _blocking_flow(self, room: list[int], distances: list[int], source: int, sink: int) -> int:
        """Augments shortest paths until each has a saturated arc. Skips arcs that led to a dead end."""
        heads, previous = self._heads, self._previous
        current = list(self._last)
        way: list[int] = []
        vertex, flow = source, 0
        while True:
            if vertex == sink:
                flow += _fill(room, way)
                full = next(i for i, arc in enumerate(way) if not room[arc])
                vertex = heads[way[full] ^ 1]
                del way[full:]
            arc, nearer = current[vertex], distances[vertex] - 1
            while arc >= 0 and not (room[arc] and distances[heads[arc]] == nearer):
                arc = previous[arc]
            current[vertex] = arc
            if arc >= 0:
                way.append(arc)
                vertex = heads[arc]
            elif way:
                led = way.pop()
                vertex = heads[led ^ 1]
                current[vertex] = previous[led]
            else:
                return flow


def _fill(room: list[int], way: list[int]) -> int:
    """Augments the flow along a path by its residual capacity."""
    amount = min(room[arc] for arc in way)
    for arc in way:
        room[arc] -= amount
        room[arc ^ 1] += amount
    return amount
