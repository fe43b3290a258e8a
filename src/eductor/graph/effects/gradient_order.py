"""The order in which autograd sums the gradients of a value: with three or more terms it affects rounding.

The backward visits the graph from its end to its start; each use of a value adds its term when it is visited. Two terms
have the same sum in either order, unless there is a third: the caller may use an input of the graph too, before or after
the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from torch.fx import Node

from eductor.graph.no import No
from eductor.graph.values.meta import UNKNOWN, nodes_in, requires_grad, value_of


def uses(node: Node, but: Collection[Node] = ()) -> list[Node]:
    """The users that contribute a gradient term of a value, twice for `x * x`, without those in `but`."""
    contributing = [user for user in node.users if user not in but and _gives_gradient(user)]
    return [user for user in contributing for _ in range(nodes_in((user.args, user.kwargs)).count(node))]


def may_be_used_elsewhere(value: Node) -> bool:
    """Whether a gradient term of a value may come from outside the graph, before or after those from inside."""
    return value.op in ("placeholder", "get_attr")


def same_sum(value: Node, others: Iterable[Node], was: Node, now: Node, parts: int = 1) -> Literal[True] | No:
    """Whether the gradient of a value is the same sum if terms of it are added at `now` instead of at `was`.

    `others` are the users that contribute its other terms.
    """
    others = list(others)
    if not requires_grad(value_of(value)) or len(others) + parts + may_be_used_elsewhere(value) <= 2:
        return True
    between = next((other for other in others if was < other and not now < other), None)
    return True if between is None else another_order(value)


def same_sum_in_place_of(old: Node, new: Node, through: Node | None = None) -> Literal[True] | No:
    """Whether the gradient of `new` is the same sum if `new` replaces `old`, an equal result of another call."""
    call = through or old
    mine, others = uses(old), uses(new, but=(call,))
    if len(mine) > 1 and (others or may_be_used_elsewhere(new)) and requires_grad(value_of(new)):
        return another_order(new)
    return same_sum(new, others, call, mine[0]) if mine else True


def another_order(value: Node) -> Literal[True] | No:
    return No(f"the gradient of {value.name} would be summed in another order")


def _gives_gradient(user: Node) -> bool:
    value = value_of(user)
    parts = value if isinstance(value, (list, tuple)) else (value,)
    return user.op == "output" or value is UNKNOWN or any(map(requires_grad, parts))
