"""Classifies the nodes of a joint graph: forward, backward, and what the backward reads of the forward."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from eductor import compat
from eductor.compat import HigherOrderOperator, OpOverload
from eductor.graph import effect_of, output_of, value_of
from eductor.graph.effects.order import ancestors
from eductor.graph.values.meta import is_backward
from eductor.program.joint import Joint

aten = torch.ops.aten


@dataclass(frozen=True)
class NodeInfo:
    """The classification of a joint graph's nodes."""

    nodes: tuple[Node, ...]
    """All nodes except the output, in order."""
    returns: tuple[Any, ...]
    gradients: tuple[Any, ...]
    primals: tuple[Node, ...]
    tangents: tuple[Node, ...]
    forward_acts: tuple[Node, ...]
    """Nodes of the forward with side effects."""
    backward_acts: tuple[Node, ...]
    destinations: tuple[Node, ...]
    """Inputs that the backward writes to."""
    overwritten: frozenset[Node]
    """Inputs that the forward overwrites."""
    parameters: frozenset[Node]
    buffers: frozenset[Node]
    """Other tensors of a module: some operators write them without bumping their version."""
    late: frozenset[Node]
    """Nodes that run in the backward: they depend on a tangent, or only the backward created and uses them."""
    checkpointed: frozenset[Node] = frozenset()
    """Nodes that the user's checkpointing marks for recomputation."""

    @cached_property
    def asked(self) -> tuple[Node, ...]:
        """The values of the forward that the backward reads."""
        read = [operand for node in self.late for operand in read_by(node)]
        read += [node for node in (*self.gradients, *self.backward_acts) if isinstance(node, Node)]
        found = {node for node in read if node not in self.late}
        return tuple(node for node in self.nodes if node in found)

    @cached_property
    def views(self) -> frozenset[Node]:
        """Values that are views or tuple items of an operand: nothing is computed."""
        return frozenset(node for node in self.nodes if is_view(node))

    @cached_property
    def exposed(self) -> frozenset[Node]:
        """Inputs and the bases of returned values: the caller may write them before the backward."""
        returned = (self.base(node) for node in self.returns if isinstance(node, Node))
        return frozenset(node for node in (*self.primals, *returned) if not is_size(node))

    @cached_property
    def guarded(self) -> frozenset[Node]:
        """The bases of what eager also saves: values that the backward, or a checkpointed region it needs, reads."""
        again = self.checkpointed & ancestors(self.asked) if self.checkpointed else ()
        regions = (operand for node in again for operand in node.all_input_nodes)
        return frozenset(self.base(node) for node in (*self.asked, *regions))

    @cached_property
    def copied(self) -> frozenset[Node]:
        """Values that must be copied if saved: the forward may write them, or the caller may where eager allows it.

        Parameters are not copied: they are hardly ever written before the backward, and autograd raises an error then.
        """
        return self.overwritten | (self.exposed - self.guarded - self.parameters)

    @cached_property
    def held(self) -> frozenset[Node]:
        """Values that the caller may write and eager saves: saved without a copy, so that autograd detects a write."""
        return self.exposed - self.copied - self.checkpointed

    def base(self, node: Node) -> Node:
        """The base of a view, or the value itself."""
        while node in self.views:
            node = node.all_input_nodes[0]
        return node


def classify(joint: Joint) -> NodeInfo:
    """Classifies the nodes of a joint graph."""
    graph = joint.module.graph
    nodes = tuple(n for n in graph.nodes if n.op != "output")
    outputs = output_of(joint.module)
    count = len(joint.analysis.returns)
    returns, gradients = tuple(outputs[:count]), tuple(outputs[count:])
    primals = tuple(joint.primals)
    tangents = tuple(graph.find_nodes(op="placeholder")[len(primals) :])
    kept = [n for n in nodes if n.op == "call_function" and not effect_of(n).removable]
    forward_acts = tuple(n for n in kept if not is_backward(n))
    backward_acts = tuple(n for n in kept if is_backward(n))
    written = {n.args[0] for n in backward_acts if n.target is aten.copy_.default}
    needed = ancestors((*gradients, *backward_acts))
    forward = ancestors((*returns, *forward_acts))
    return NodeInfo(
        nodes,
        returns,
        gradients,
        primals,
        tangents,
        forward_acts,
        backward_acts,
        tuple(p for p in primals if p in written),
        frozenset(n for i, n in enumerate(primals) if i in joint.overwritten),
        frozenset(n for i, n in enumerate(primals) if i in joint.parameters),
        frozenset(n for i, n in enumerate(primals) if i in joint.static - joint.parameters),
        _late([n for n in nodes if n in needed and n not in forward], primals, tangents),
        _checkpointed(nodes, joint),
    )


def _checkpointed(nodes: tuple[Node, ...], joint: Joint) -> frozenset[Node]:
    """The nodes marked by checkpointing that eager recomputes.

    Regions without gradients are not recomputed, nor are values without a gradient that are read outside their region.
    """
    marked = [node for node in nodes if compat.wants_recompute(node)]
    if not marked:
        return frozenset()
    differentiable = {n for n, given in zip(joint.primals, joint.analysis.inputs, strict=True) if given.requires_grad}
    for node in nodes:
        if any(operand in differentiable for operand in node.all_input_nodes):
            differentiable.add(node)
    regions = {compat.checkpointed_in(node) for node in marked if node in differentiable}
    inside = [node for node in marked if compat.checkpointed_in(node) in regions]
    return frozenset(node for node in inside if node in differentiable or not _is_read_outside(node))


def _is_read_outside(node: Node) -> bool:
    """Whether the forward reads a value outside the checkpointed region that computes it."""
    own = compat.checkpointed_in(node)
    return any(not is_backward(user) and compat.checkpointed_in(user) != own for user in node.users)


def _late(nodes: list[Node], primals: tuple[Node, ...], tangents: tuple[Node, ...]) -> frozenset[Node]:
    late, given = set(tangents), set(primals)
    for node in nodes:
        if node in given:
            continue
        made_by_backward = is_backward(node) and not is_size(node) and node.op == "call_function"
        if made_by_backward or any(operand in late for operand in node.all_input_nodes):
            late.add(node)
    return frozenset(late)


def made_ahead(info: NodeInfo, saved: Iterable[Node], ahead: Iterable[Node]) -> list[Node]:
    """What the backward computes first to obtain the values `ahead`, in forward order."""
    wanted = set(_missing(ahead, {*saved}))
    return [node for node in info.nodes if node in wanted]


def backward_order(info: NodeInfo, saved: Iterable[Node]) -> list[Node]:
    """What the backward computes, in autograd's order, with recomputed values right before their first reader."""
    late = [n for n in info.nodes if n in info.late]
    writes = [n for n in late if n.target is aten.copy_.default]
    # Recomputed nodes may read what the backward writes: the writes come last, after all that they read.
    wanted = [*(n for n in late if n not in writes), *info.gradients, *(o for n in writes for o in read_by(n)), *writes]
    return _missing(wanted, {*saved, *info.tangents})


def _missing(wanted: Iterable[Any], there: set[Node]) -> list[Node]:
    """The nodes to compute for the wanted values in order, each after its operands."""
    found: list[Node] = []
    for node in wanted:
        pending = [node] if isinstance(node, Node) else []
        while pending:
            top = pending[-1]
            missing = [operand for operand in read_by(top) if operand not in there] if top not in there else []
            if missing:
                pending.extend(reversed(missing))
                continue
            pending.pop()
            if top not in there:
                there.add(top)
                found.append(top)
    return found


def read_by(node: Node) -> list[Node]:
    """Operands whose values a node reads; a `copy_` reads its source, not its destination."""
    if node.target is aten.copy_.default:
        return [node.args[1]]  # type: ignore[list-item]
    return node.all_input_nodes


def is_size(node: Node) -> bool:
    """Whether the value of a node is a number: a tensor's size, or computed from sizes."""
    return isinstance(value_of(node), (int, torch.SymInt, torch.SymFloat, torch.SymBool))


def is_view(node: Node) -> bool:
    """Whether a value is a view of an operand, or an item of a tuple of views."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem and isinstance(value_of(node.args[0]), (list, tuple)):
        return is_view(node.all_input_nodes[0])
    effect = effect_of(node)
    return bool(effect.shares) and (effect.is_view or effect.removable)  # the conjugate of a number shares nothing


def computed_by(node: Node) -> Node:
    """The call that computes a value; for a tuple item, the call of its tuple."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def may_be_repeated(node: Node) -> bool:
    """Whether recomputing a node gives the same value without side effects; an item is recomputed with its tuple."""
    call = computed_by(node)
    effect, target = effect_of(call), call.target
    if effect.writes or effect.barrier or effect.random or isinstance(target, HigherOrderOperator):
        return False
    if isinstance(target, OpOverload) and target.namespace not in _KNOWN:
        return False  # an operator of another package may draw random numbers
    return not (isinstance(target, OpOverload) and target._opname in _UNWRITTEN)


_KNOWN = ("aten", "prims", "eductor")
_UNWRITTEN = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
"""Operators that return uninitialized memory."""
