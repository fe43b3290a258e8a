"""Whether changing a value's strides is observable: propagated through fake values, before any edit."""

from __future__ import annotations

import heapq
import operator
from typing import Any, Literal

import torch
from torch.fx import Node, map_arg

from eductor.compat import OpOverload, enable_python_dispatcher, is_symbolic, sort_key
from eductor.graph import GraphView, No, difference, value_of
from eductor.graph.values.meta import fake_mode_of

_MOST_CHANGED = 64
"""How many values with changed strides are followed at most."""


def may_change_strides(graph: GraphView, node: Node, value: torch.Tensor) -> Literal[True] | No:
    """Whether a node may get this fake value, which differs from its own only in strides and offset."""
    if difference(value_of(node), value) is None:
        return True
    mode = fake_mode_of(graph.graph)
    if mode is None or is_symbolic(value) or is_symbolic(value_of(node)):
        return No(f"the strides of {node.name} would change, and its readers cannot be evaluated")
    changed: dict[Node, Any] = {node: value}
    pending = [(sort_key(user), id(user), user) for user in node.users]
    heapq.heapify(pending)
    while pending and len(changed) < _MOST_CHANGED:
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
    return True if not pending else No(f"the strides of many values computed from {node.name} would change")


def _evaluated(graph: GraphView, node: Node, changed: dict[Node, Any], mode: Any) -> Any:
    """The fake value of a node on changed operands, or why it is not known."""
    if node.op == "output":
        return No("the strides of an output would change")
    call: Any = node.target
    if not (isinstance(call, OpOverload) or call is operator.getitem) or graph.effects.of(node).writes:
        return No(f"{node.name} may observe its strides")
    if graph.is_call(node, torch.ops.aten.as_strided):
        return No(f"{node.name} reads its storage directly")
    if "unbacked_bindings" in node.meta or any(map(_is_symbolic, (*node.all_input_nodes, node))):
        return No(f"{node.name} has symbolic sizes, and evaluating it may install a guard")
    given: Any = map_arg((node.args, node.kwargs), lambda n: changed.get(n, value_of(n)))
    try:
        with mode, enable_python_dispatcher(), torch.no_grad():
            return call(*given[0], **given[1])
    except RuntimeError:
        return No(f"{node.name} cannot view it with changed strides")


def _is_symbolic(node: Node) -> bool:
    value = value_of(node)
    return is_symbolic(value) if isinstance(value, torch.Tensor) else isinstance(value, (torch.SymInt, torch.SymFloat))
