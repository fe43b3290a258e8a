"""Bans that depend on graph structure: how far a kernel could extend in the forward if everything fusible were fused."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from torch.fx import Node

from eductor.graph.effects.order import ancestors
from eductor.partition.allowlist import can_fuse
from eductor.partition.node_info import NodeInfo

LONG = 100
"""The most nodes of the forward that a chain may span."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The nodes of the forward, with their positions."""

    nodes: tuple[Node, ...]
    place: dict[Node, int]
    views: Set[Node]
    checkpointed: Set[Node]

    @staticmethod
    def of(info: NodeInfo) -> Forward:
        found = ancestors((*info.primals, *info.returns, *info.forward_acts))
        nodes = tuple(node for node in info.nodes if node in found)
        return Forward(nodes, {node: i for i, node in enumerate(nodes)}, info.views, info.checkpointed)

    def users(self, node: Node) -> list[Node]:
        """The readers of a value in the forward."""
        return [user for user in node.users if user in self.place]


def used_far_apart(forward: Forward, taken: Set[Node]) -> Iterator[Node]:
    """The readers of a value after the first node that cannot be in one kernel with the other readers."""
    for node in forward.nodes:
        users = forward.users(node)
        if len(users) > 1:
            end = _end_of_kernel(forward, users)
            yield from (user for user in users if forward.place[user] > end and can_fuse(node, user))


def _end_of_kernel(forward: Forward, starts: Sequence[Node]) -> int:
    """The position of the first node that cannot fuse with its path from the starts, at most that of the last start."""
    pending = [forward.place[node] for node in starts]
    end = max(pending)
    heapq.heapify(pending)
    seen = set[int]()
    while pending and (place := heapq.heappop(pending)) < end:
        if place in seen:
            continue
        seen.add(place)
        node = forward.nodes[place]
        for user in forward.users(node):
            if can_fuse(node, user):
                heapq.heappush(pending, forward.place[user])
            else:
                end = min(end, forward.place[user])
    return end


def long_chains(forward: Forward, taken: Set[Node]) -> Iterator[Node]:
    """The ends of too long fusible chains: the first node beyond the limit through which all of a chain continues."""
    stops, seen = set(taken), set[int]()
    for start in range(len(forward.nodes)):
        pending = [start]
        while pending:
            place = heapq.heappop(pending)
            if place in seen:
                continue
            seen.add(place)
            node = forward.nodes[place]
            if place > start + LONG and not pending:
                stops.add(node)
                yield node
                break
            for user in forward.users(node):
                if user not in stops and can_fuse(node, user):
                    heapq.heappush(pending, forward.place[user])
