"""The policy `compat`: the prices of torch's partitioner, under which recomputing is either free or banned.

What can be saved and what can be recomputed at all it takes from the priced problem; it only adds bans.
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from eductor.cost import bytes_of
from eductor.options import Options
from eductor.partition.allowlist import can_fuse
from eductor.partition.bans import Ban, Forward, banned
from eductor.partition.node_info import NodeInfo, computed_by, is_size
from eductor.partition.prices import Priced
from eductor.partition.problem import Problem

HOP, FARTHEST = 1.1, 100
"""The factor by which each hop away from the backward raises the price of a value, and the most hops that count."""

AGGRESSIVE = ("compute_heavy", "reductions")
"""The bans that `aggressive_recomputation` keeps."""


def compat_problem(info: NodeInfo, found: Priced, options: Options) -> Problem:
    """The same problem at the prices of torch's partitioner."""
    bans, hops = bans_of(info, found, options), _hops(info)
    free = (info.parameters | info.buffers) - info.copied
    values = []
    for node, value in zip(found.nodes, found.problem.values, strict=True):
        keep, again = value.keep, value.again
        if keep is not None:
            keep = 0 if node in free else _price(node, hops[node])
        if again is not None:
            again = None if node in bans and keep is not None else 0
        values.append(replace(value, keep=keep, again=again))
    return Problem(tuple(values))


def bans_of(info: NodeInfo, found: Priced, options: Options) -> dict[Node, Ban]:
    """The values that bans forbid to recompute, with the items of banned tuples; empty under another policy."""
    if options.partition_policy != "compat":
        return {}
    never = {node for node, value in zip(found.nodes, found.problem.values, strict=True) if value.again is None}
    names = set(options.bans) & set(AGGRESSIVE) if options.aggressive_recomputation else set(options.bans)
    bans = banned(Forward.of(info), never, names)
    both = ((node, bans.get(node) or bans.get(computed_by(node))) for node in found.nodes)
    return {node: ban for node, ban in both if ban is not None}


def _price(node: Node, hops: int) -> int:
    """The price of saving a value: its bytes, more with distance from the backward, twice if only saving materializes it."""
    if is_size(node):
        return 1
    price = int(bytes_of(node) * HOP ** max(1, hops))
    is_written = node.op == "placeholder" or not all(can_fuse(node, user) for user in node.users)
    return price if is_written else 2 * price


def _hops(info: NodeInfo) -> dict[Node, int]:
    """The distance of each forward value to its nearest reader in the backward; 0 for nodes of the backward."""
    forward = Forward.of(info).place
    hops: dict[Node, int] = {}
    for node in reversed(info.nodes):
        ways = (hops.get(user, FARTHEST) + 1 for user in node.users)
        hops[node] = min((FARTHEST, *ways)) if node in forward else 0
    return hops
