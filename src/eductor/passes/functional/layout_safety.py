"""Whether anybody notices that a value lies otherwise in memory: followed through fake values, before any edit."""

from __future__ import annotations

import heapq
import operator
from typing import Any, Literal

import torch
from torch.fx import Node, map_arg

from eductor.compat import OpOverload, enable_python_dispatcher, is_symbolic, sort_key
from eductor.graph.no import No
from eductor.graph.values.meta import difference, fake_mode_of, value_of
from eductor.graph.view import GraphView

_FURTHEST = 64
"""After so many values that lie otherwise, nobody looks further."""


def may_lie_otherwise(graph: GraphView, node: Node, value: torch.Tensor) -> Literal[True] | No:
    """May a node have this fake value, which is its own but for strides and offset?"""
    if difference(value_of(node), value) is None:
        return True
    mode = fake_mode_of(graph.graph)
    if mode is None or is_symbolic(value) or is_symbolic(value_of(node)):
        return No(f"{node.name} lies otherwise in memory, and who reads that is not known")
    changed: dict[Node, Any] = {node: value}
    pending = [(sort_key(user), id(user), user) for user in node.users]
    heapq.heapify(pending)
    while pending and len(changed) < _FURTHEST:
        user = heapq.heappop(pending)[2]
        if user in changed:
            continue
        seen = _evaluated(graph, user, changed, mode)
        if isinstance(seen, No):
            return seen
        if difference(value_of(user), seen) is not None:
            changed[user] = seen
            for later in user.users:
                heapq.heappush(pending, (sort_key(later), id(later), later))
    return True if not pending else No(f"many values that are made of {node.name} would lie otherwise in memory")


def _evaluated(graph: GraphView, node: Node, changed: dict[Node, Any], mode: Any) -> Any:
    """The fake value of a node with other operands, or why nobody can tell."""
    if node.op == "output":
        return No("an output would lie otherwise in memory")
    call: Any = node.target
    if not (isinstance(call, OpOverload) or call is operator.getitem) or graph.effects.of(node).writes:
        return No(f"{node.name} may look at how it lies in memory")
    if graph.is_call(node, torch.ops.aten.as_strided):
        return No(f"{node.name} looks past it, at the memory that it lies in")
    if "unbacked_bindings" in node.meta or any(map(_is_symbolic, (*node.all_input_nodes, node))):
        return No(f"{node.name} is of symbolic size, and evaluating it may install a guard")
    given: Any = map_arg((node.args, node.kwargs), lambda n: changed.get(n, value_of(n)))
    try:
        with mode, enable_python_dispatcher(), torch.no_grad():
            return call(*given[0], **given[1])
    except RuntimeError:
        return No(f"{node.name} cannot view it as it would lie in memory")


def _is_symbolic(node: Node) -> bool:
    value = value_of(node)
    return is_symbolic(value) if isinstance(value, torch.Tensor) else isinstance(value, (torch.SymInt, torch.SymFloat))
