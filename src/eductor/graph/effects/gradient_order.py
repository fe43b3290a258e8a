"""In which order autograd adds up the gradients of a value: the sum of three numbers depends on it.

The backward visits the graph from its end to its start; each use of a value adds its part when it is visited. Two
parts make the same sum in either order, unless there is a third from elsewhere: the caller may use an input of the graph
as well, before or after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from torch.fx import Node, map_arg

from eductor.graph.no import No
from eductor.graph.values.meta import UNKNOWN, requires_grad, value_of


def uses(node: Node, but: Collection[Node] = ()) -> list[Node]:
    """Who gives a part of the gradient of a value, twice for `x * x`; those in `but` are left out."""
    givers = [user for user in node.users if user not in but and _gives_gradient(user)]
    return [user for user in givers for _ in range(_operands(user).count(node))]


def may_be_used_elsewhere(value: Node) -> bool:
    """Whether a part of the gradient of a value may come from outside of the graph, before or after those from inside."""
    return value.op in ("placeholder", "get_attr")


def same_sum(value: Node, others: Iterable[Node], was: Node, now: Node, parts: int = 1) -> Literal[True] | No:
    """Is the gradient of a value the same sum if parts of it are added where `now` stands, no more where `was` does?

    The others are those who give the rest of it.
    """
    others = list(others)
    if not requires_grad(value_of(value)) or len(others) + parts + may_be_used_elsewhere(value) <= 2:
        return True
    between = next((other for other in others if was < other and not now < other), None)
    return True if between is None else another_order(value)


def same_sum_in_place_of(old: Node, new: Node, through: Node | None = None) -> Literal[True] | No:
    """Is the gradient of `new` the same sum if it is used wherever `old` is, which is the same, made by another call?"""
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


def _operands(user: Node) -> list[Node]:
    found: list[Node] = []
    map_arg((user.args, user.kwargs), found.append)
    return found
