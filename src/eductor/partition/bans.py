"""The bans of the policy `compat`: what it must not recompute, as torch's partitioner, as a table with a reason each.

There, recomputing a value is either free or banned. The bans are guesses about when it would not be free.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from torch.fx import Node

from eductor.cost import bytes_of
from eductor.graph.effects.order import ancestors
from eductor.options import BanName
from eductor.partition.allowlist import can_fuse, is_allowed, is_heavy
from eductor.partition.node_info import NodeInfo

SHRINKS = 4
"""The factor by which a banned reduction shrinks its input at least."""


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


@dataclass(frozen=True, slots=True)
class Ban:
    """A ban, its reason, and the nodes that it bans, given those that other bans already do."""

    name: BanName
    reason: str
    nodes: Callable[[Forward, Set[Node]], Iterable[Node]]


def banned(forward: Forward, never: Set[Node], names: Collection[str]) -> dict[Node, Ban]:
    """The nodes that some bans forbid to recompute, each with its first ban; `never` are those that no policy may."""
    found: dict[Node, Ban] = {}
    for ban in BANS:
        if ban.name in names:
            nodes = [node for node in ban.nodes(forward, never | found.keys()) if _is_open(forward, node)]
            found = {**dict.fromkeys(nodes, ban), **found}
    return found


def _is_open(forward: Forward, node: Node) -> bool:
    """Whether bans apply to a node: not to views, which are free, nor to what checkpointing marks."""
    return node.op == "call_function" and node not in forward.views and node not in forward.checkpointed


def _not_allowed(forward: Forward, taken: Set[Node]) -> Iterable[Node]:
    return (node for node in forward.nodes if not is_allowed(node))


def _heavy(forward: Forward, taken: Set[Node]) -> Iterable[Node]:
    return (node for node in forward.nodes if is_heavy(node))


def _materialized(forward: Forward, taken: Set[Node]) -> Iterator[Node]:
    for node in _calls(forward):
        pending = [node]
        while pending:
            value = pending.pop()
            if any(user not in forward.place and not can_fuse(value, user) for user in value.users):
                yield node
                break
            pending += (user for user in value.users if user in forward.views)


def _reductions(forward: Forward, taken: Set[Node]) -> Iterator[Node]:
    for node in _calls(forward):
        if SHRINKS * bytes_of(node) < sum(bytes_of(operand) for operand in node.all_input_nodes):
            yield node


def _calls(forward: Forward) -> Iterator[Node]:
    """All nodes except items of tuples: a tuple is computed as a whole."""
    return (node for node in forward.nodes if node.target is not operator.getitem)


def _used_far_apart(forward: Forward, taken: Set[Node]) -> Iterator[Node]:
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


def _long_chains(forward: Forward, taken: Set[Node]) -> Iterator[Node]:
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


BANS = (
    Ban("not_in_allowlist", "its operator is not on the list of cheap ones", _not_allowed),
    Ban("compute_heavy", "a matrix product, a convolution or attention takes longer than reading its result", _heavy),
    Ban("materialized_backward", "the backward would materialize it, for a reader that does not fuse", _materialized),
    Ban("reductions", f"it is less than 1/{SHRINKS} of its operands: cheap to save", _reductions),
    Ban("used_far_apart", "it cannot share a kernel with an earlier reader of its operand", _used_far_apart),
    Ban("long_fusible_chains", f"it ends a chain of over {LONG} nodes that would all be recomputed", _long_chains),
)
"""In order of evaluation: chains end at what the other bans forbid."""
