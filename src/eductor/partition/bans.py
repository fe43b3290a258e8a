"""What the policy `compat` must not compute again: the bans of torch's partitioner, as a table with a reason each.

There, to compute a value again is free or forbidden. The bans are guesses about when it would not be free.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import dataclass

from torch.fx import Node

from eductor import compat
from eductor.cost import bytes_of
from eductor.options import Ban
from eductor.partition.allowlist import can_fuse, is_allowed, is_heavy
from eductor.partition.fusible import LONG, Forward, long_chains, used_far_apart
from eductor.partition.node_info import is_view

SHRINKS = 4
"""What a reduction reads is more than so many times as large as what it gives."""


@dataclass(frozen=True, slots=True)
class Row:
    """A ban, why it is there, and the nodes that it forbids, given those that are forbidden already."""

    name: Ban
    reason: str
    nodes: Callable[[Forward, Set[Node]], Iterable[Node]]


def banned(forward: Forward, never: Set[Node], names: Collection[str]) -> dict[Node, Row]:
    """What some bans forbid to compute again, each with the first ban that does; `never` is what nobody may."""
    found: dict[Node, Row] = {}
    for row in BANS:
        if row.name in names:
            nodes = [node for node in row.nodes(forward, never | found.keys()) if _is_open(node)]
            found = {**dict.fromkeys(nodes, row), **found}
    return found


def _is_open(node: Node) -> bool:
    """Whether it is for a ban to say: a view takes nothing, and what checkpointing asks for is not questioned."""
    return node.op == "call_function" and not is_view(node) and not compat.wants_recompute(node)


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
            pending += (user for user in value.users if is_view(user))


def _reductions(forward: Forward, taken: Set[Node]) -> Iterator[Node]:
    for node in _calls(forward):
        if SHRINKS * bytes_of(node) < sum(bytes_of(operand) for operand in node.all_input_nodes):
            yield node


def _calls(forward: Forward) -> Iterator[Node]:
    """All but items of tuples: a tuple is computed as a whole."""
    return (node for node in forward.nodes if node.target is not operator.getitem)


BANS = (
    Row("not_in_allowlist", "its operator is not in the list of cheap ones", _not_allowed),
    Row("compute_heavy", "a matrix product, a convolution or attention takes longer than a read", _heavy),
    Row(
        "materialized_backward", "the backward would write it to memory, for a reader that does not fuse", _materialized
    ),
    Row("reductions", f"it is less than 1/{SHRINKS} of what it is computed from: cheap to save", _reductions),
    Row("used_far_apart", "no kernel has both it and an earlier reader of what it reads", used_far_apart),
    Row("long_fusible_chains", f"it ends a chain over {LONG} nodes that all would be computed again", long_chains),
)
"""In the order in which they are asked: chains end at what the others forbid."""
