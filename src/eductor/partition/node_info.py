"""The nodes of a joint graph, sorted: what the forward makes, what runs in the backward, what the backward asks for."""

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
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.effects.order import ancestors
from eductor.graph.values.meta import is_backward, output_of, value_of
from eductor.program.joint import Joint

aten = torch.ops.aten


@dataclass(frozen=True)
class NodeInfo:
    """Where each node of a joint graph belongs."""

    nodes: tuple[Node, ...]
    """All but the output, in order."""
    returns: tuple[Any, ...]
    gradients: tuple[Any, ...]
    primals: tuple[Node, ...]
    tangents: tuple[Node, ...]
    forward_acts: tuple[Node, ...]
    """Nodes of the forward that are there for what they do."""
    backward_acts: tuple[Node, ...]
    destinations: tuple[Node, ...]
    """Inputs that the backward writes to."""
    overwritten: frozenset[Node]
    """Inputs whose old value is gone after the forward."""
    parameters: frozenset[Node]
    buffers: frozenset[Node]
    """Other tensors of a module: some operators write them in a way that nobody notices."""
    late: frozenset[Node]
    """What runs in the backward: what depends on a gradient, or was made by the backward and serves it alone."""
    checkpointed: frozenset[Node] = frozenset()
    """What the user's checkpointing asks to compute again."""

    @cached_property
    def asked(self) -> tuple[Node, ...]:
        """The values of the forward that the backward reads."""
        read = [operand for node in self.late for operand in read_by(node)]
        read += [node for node in (*self.gradients, *self.backward_acts) if isinstance(node, Node)]
        found = {node for node in read if node not in self.late}
        return tuple(node for node in self.nodes if node in found)

    @cached_property
    def views(self) -> frozenset[Node]:
        """Values that are another form of an operand, or one of several pieces of it: nothing is computed."""
        return frozenset(node for node in self.nodes if is_view(node))

    @cached_property
    def exposed(self) -> frozenset[Node]:
        """Inputs, and what returned values are or are views of: the caller may write them before the backward."""
        returned = (self.base(node) for node in self.returns if isinstance(node, Node))
        return frozenset(node for node in (*self.primals, *returned) if not is_size(node))

    @cached_property
    def guarded(self) -> frozenset[Node]:
        """What eager holds too, views aside: the backward reads it, or a checkpointed region that it needs does."""
        again = self.checkpointed & ancestors(self.asked) if self.checkpointed else ()
        regions = (operand for node in again for operand in node.all_input_nodes)
        return frozenset(self.base(node) for node in (*self.asked, *regions))

    @cached_property
    def copied(self) -> frozenset[Node]:
        """What is saved as a copy, if it is saved: the caller may write it where eager allows that, or the forward does.

        Parameters are not copied: hardly anybody writes them before the backward, and autograd says so if it happens.
        """
        return self.overwritten | (self.exposed - self.guarded - self.parameters)

    @cached_property
    def held(self) -> frozenset[Node]:
        """What the caller may write and eager saves: it is saved as it is, so that autograd complains if it was written."""
        return self.exposed - self.copied - self.checkpointed

    def base(self, node: Node) -> Node:
        """What a value is a view of, or itself."""
        while node in self.views:
            node = node.all_input_nodes[0]
        return node


def classify(joint: Joint) -> NodeInfo:
    """Sorts the nodes of a joint graph."""
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
    """What is marked by checkpointing, as far as eager computes it again.

    A region without gradients runs as it is written. Of others, what has no gradient and is read outside is held there.
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
    """Whether the forward reads a value outside of the checkpointed region that it was computed in."""
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
    """What the backward computes before anything else, to have the values `ahead`: in the order of the forward."""
    wanted = set(_missing(ahead, {*saved}))
    return [node for node in info.nodes if node in wanted]


def backward_order(info: NodeInfo, saved: Iterable[Node]) -> list[Node]:
    """What the backward computes: in the order of autograd, what is made again right before it is first read."""
    late = [n for n in info.nodes if n in info.late]
    writes = [n for n in late if n.target is aten.copy_.default]
    # What the backward writes to may be read by what is made again: the writes come last, behind all that they read.
    wanted = [*(n for n in late if n not in writes), *info.gradients, *(o for n in writes for o in read_by(n)), *writes]
    return _missing(wanted, {*saved, *info.tangents})


def _missing(wanted: Iterable[Any], there: set[Node]) -> list[Node]:
    """What must be computed to have the wanted values one after the other, each behind all that it reads."""
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
    """Operands whose values a node reads; a write-back reads what it writes, not what it writes to."""
    if node.target is aten.copy_.default:
        return [node.args[1]]  # type: ignore[list-item]
    return node.all_input_nodes


def is_size(node: Node) -> bool:
    """Whether the value of a node is a number: a size of a tensor, or what is computed from sizes."""
    return isinstance(value_of(node), (int, torch.SymInt, torch.SymFloat, torch.SymBool))


def is_view(node: Node) -> bool:
    """Whether a value lies in the memory of an operand; the items of a tuple of such values do."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem and isinstance(value_of(node.args[0]), (list, tuple)):
        return is_view(node.all_input_nodes[0])
    effect = effect_of(node)
    return effect.is_view or (bool(effect.shares) and effect.removable)


def computed_by(node: Node) -> Node:
    """The call that computes a value: that of its tuple, for an item of one."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def may_be_repeated(node: Node) -> bool:
    """Whether computing a node twice gives the same value twice and does nothing else; an item is computed with its tuple."""
    call = computed_by(node)
    effect, target = effect_of(call), call.target
    if effect.writes or effect.barrier or effect.random or isinstance(target, HigherOrderOperator):
        return False
    if isinstance(target, OpOverload) and target.namespace not in _KNOWN:
        return False  # of a foreign operator nobody says whether it draws random numbers
    return not (isinstance(target, OpOverload) and target._opname in _UNWRITTEN)


_KNOWN = ("aten", "prims", "eductor")
_UNWRITTEN = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
"""Their memory holds what it held before."""
