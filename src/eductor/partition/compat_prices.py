"""The policy `compat`: the prices of torch's partitioner, under which a value is computed again for nothing or not at all.

What may be saved and what may be computed again at all is not its business: it takes that from the priced problem, and
adds bans.
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from eductor.cost import bytes_of
from eductor.options import Options
from eductor.partition.allowlist import can_fuse
from eductor.partition.bans import Row, banned
from eductor.partition.fusible import Forward
from eductor.partition.node_info import NodeInfo, computed_by, is_size
from eductor.partition.prices import Priced
from eductor.partition.problem import Problem

HOP, FARTHEST = 1.1, 100
"""Each hop away from the backward makes a value dearer by so much, up to so many hops."""

AGGRESSIVE = ("compute_heavy", "reductions")
"""The bans that `aggressive_recomputation` keeps."""


def compat_problem(info: NodeInfo, found: Priced, options: Options) -> Problem:
    """The same values, at other prices."""
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


def bans_of(info: NodeInfo, found: Priced, options: Options) -> dict[Node, Row]:
    """The values that bans forbid to compute again: also the items of a tuple that is banned; none in another policy."""
    if options.partition_policy != "compat":
        return {}
    never = {node for node, value in zip(found.nodes, found.problem.values, strict=True) if value.again is None}
    names = set(options.bans) & set(AGGRESSIVE) if options.aggressive_recomputation else set(options.bans)
    rows = banned(Forward.of(info), never, names)
    both = ((node, rows.get(node) or rows.get(computed_by(node))) for node in found.nodes)
    return {node: row for node, row in both if row is not None}


def _price(node: Node, hops: int) -> int:
    """What saving a value costs: its bytes, more the farther the backward is, twice if it would not be written anyway."""
    if is_size(node):
        return 1
    price = int(bytes_of(node) * HOP ** max(1, hops))
    is_written = node.op == "placeholder" or not all(can_fuse(node, user) for user in node.users)
    return price if is_written else 2 * price


def _hops(info: NodeInfo) -> dict[Node, int]:
    """How many steps each value of the forward is away from a reader in the backward; none, for what runs there."""
    forward = Forward.of(info).place
    hops: dict[Node, int] = {}
    for node in reversed(info.nodes):
        ways = (hops.get(user, FARTHEST) + 1 for user in node.users)
        hops[node] = min((FARTHEST, *ways)) if node in forward else 0
    return hops
