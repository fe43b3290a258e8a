"""Finds a softmax, whole or decomposed, where the search for attention begins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, tensor_of
from eductor.graph.values.meta import is_backward
from eductor.passes.joint.attention.numbers import number_of

aten = torch.ops.aten
prims = torch.ops.prims

ANCHORS = (aten._softmax, aten._safe_softmax, aten.amax)
_NAMES = ("aten._softmax.", "aten._safe_softmax.")


@dataclass(frozen=True, slots=True)
class Softmax:
    """A softmax over one dimension: its input, its output, its nodes."""

    input: Node
    output: Node
    dim: int
    nodes: tuple[Node, ...]
    is_safe: bool
    """Whether a row without any score is 0, not NaN."""
    whole: tuple[Any, ...]
    """The operator that autograd saw, and its arguments after the input."""


def forward_users(node: Node) -> list[Node]:
    """The users of a value in the forward."""
    return [user for user in node.users if not is_backward(user)]


def softmax_at(graph: GraphView, node: Node) -> Softmax | None:
    """The softmax that a call computes, or whose row maximum it computes; None for any other call."""
    bound = graph.bind(node)
    if is_backward(node) or not isinstance(bound, Bound):
        return None
    return _decomposed(graph, node, bound) if bound.packet is aten.amax else _whole(node, bound)


def _whole(node: Node, bound: Bound) -> Softmax | None:
    x = tensor_of(bound["self"])
    if x is None or not x.dim() or not x.dtype.is_floating_point:
        return None
    rest = [bound["half_to_float"]] if bound.packet is aten._softmax else [bound["dtype"]]
    op, dim = bound.op, bound["dim"]
    is_safe = bound.packet is aten._safe_softmax
    return Softmax(bound["self"], node, dim % x.dim(), (node,), is_safe, (op, dim, *rest))


def _decomposed(graph: GraphView, maximum: Node, bound: Bound) -> Softmax | None:
    """`e / e.sum(dim)` of `e = exp(x - x.amax(dim))`, with the casts that its decomposition put around it."""
    value = bound["self"]
    x = tensor_of(value)
    if x is None or not x.dim() or not x.dtype.is_floating_point or not _keeps_one_dim(bound, x.dim()):
        return None
    dim = bound["dim"][0] % x.dim()
    shifted = _user(graph, maximum, aten.sub, self=value, other=maximum, alpha=1)
    power = shifted and _user(graph, shifted, aten.exp, self=shifted)
    total = power and next(_users(graph, power, aten.sum, self=power, dtype=None), None)
    total_bound = graph.bind(total) if total else None
    if not isinstance(total_bound, Bound) or not _keeps_one_dim(total_bound, x.dim(), dim):
        return None
    assert power is not None and total is not None and shifted is not None  # noqa: PT018
    ratio = _user(graph, power, aten.div, self=power, other=total)
    if ratio is None:
        return None
    nodes: tuple[Node, ...] = (maximum, shifted, power, total, ratio)
    value, output, nodes = _with_its_casts(graph, value, ratio, nodes)
    safe = _made_safe(graph, value, output, dim)
    if safe is not None:
        return Softmax(value, safe[-1], dim, (*nodes, *safe), True, (aten._safe_softmax.default, dim))
    return Softmax(value, output, dim, nodes, False, (aten._softmax.default, dim, False))


def _keeps_one_dim(bound: Bound, rank: int, dim: int | None = None) -> bool:
    dims = bound.get("dim")
    dims = dims if isinstance(dims, (list, tuple)) else [dims]
    return len(dims) == 1 and bound["keepdim"] is True and (dim is None or dims[0] % rank == dim)


def _users(graph: GraphView, node: Node, packet: Any, **arguments: Any) -> Iterator[Node]:
    """The forward calls of an operator that take a value and have these arguments."""
    for user in forward_users(node):
        bound = graph.bind(user)
        if isinstance(bound, Bound) and bound.packet is packet:
            if all(bound.get(name, given) is given or bound.get(name) == given for name, given in arguments.items()):
                yield user


def _user(graph: GraphView, node: Node, packet: Any, **arguments: Any) -> Node | None:
    """The only such call; None if there is not exactly one."""
    found = list(itertools.islice(_users(graph, node, packet, **arguments), 2))
    return found[0] if len(found) == 1 else None


def _with_its_casts(
    graph: GraphView, value: Node, output: Node, nodes: tuple[Node, ...]
) -> tuple[Node, Node, tuple[Node, ...]]:
    """Adds the casts of a half-precision softmax, which computes in float32; the user's casts are no part of it."""
    users = forward_users(output)
    up, down = value, users[0] if len(users) == 1 else output
    ours = all(
        graph.is_call(n, prims.convert_element_type) and decomposed_from(n).startswith(_NAMES) for n in (up, down)
    )
    if not ours or down is output:
        return value, output, nodes
    bound = graph.bind(up)
    assert isinstance(bound, Bound)
    return bound["a"], down, (up, *nodes, down)


def decomposed_from(node: Node) -> str:
    """The operator that a node was decomposed from, by its name: graphs may hold copies of operators."""
    return str(node.meta.get("original_aten"))


def _made_safe(graph: GraphView, value: Node, output: Node, dim: int) -> tuple[Node, ...] | None:
    """The calls that set rows of only -inf to 0 afterwards; None if there are none."""
    for equal in _users(graph, value, aten.eq, self=value):
        bound = graph.bind(equal)
        if not isinstance(bound, Bound) or number_of(graph, bound["other"]) != float("-inf"):
            continue
        chain = [equal]
        for packet in (aten.logical_not, aten.any, aten.logical_not, aten.where):
            found = _user(graph, chain[-1], packet)
            if found is None:
                break
            chain.append(found)
        else:
            some, pick = graph.bind(chain[2]), graph.bind(chain[4])
            if isinstance(some, Bound) and isinstance(pick, Bound) and _keeps_one_dim(some, _rank(value), dim):
                if pick["other"] is output and number_of(graph, pick["self"]) == 0:
                    return tuple(chain)
    return None


def _rank(node: Node) -> int:
    tensor = tensor_of(node)
    return 0 if tensor is None else tensor.dim()
