"""What keeping a value for the backward costs, and what making it again does: a joint graph as a problem in numbers.

Keeping a value costs a read in the backward, and a write in the forward where it would otherwise never leave a kernel.
Making it again costs a kernel; where pointwise operators fuse into what reads them, only their arithmetic. What is read
from parameters and other inputs is there anyway. Views and tuples are made again from what they are of.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch.fx import Node

from eductor import compat
from eductor.cost import Device, bytes_of, fused_time_of, fuses, reduces, time_of
from eductor.graph.meta import tensor_of, value_of
from eductor.graph.node_effects import effect_of
from eductor.partition.node_info import NodeInfo, is_size, may_be_repeated
from eductor.partition.problem import Problem, Value

PICOSECONDS = 1e12


@dataclass(frozen=True, slots=True)
class Priced:
    """A problem, and the node that each of its values is."""

    problem: Problem
    nodes: tuple[Node, ...]


def priced(info: NodeInfo, device: Device) -> Priced:
    """All that the backward asks for, and all that this is computed from."""
    asked = set(info.asked_for())
    found: set[Node] = set()
    pending = [*asked]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    nodes = tuple(node for node in info.nodes if node in found)
    numbers = {node: i for i, node in enumerate(nodes)}
    returned = {node for node in info.returns if isinstance(node, Node)}
    values = []
    for node in nodes:
        keep, again = _keep(node, info, device, returned), _again(node, info, device)
        values.append(
            Value(
                node.name,
                tuple(numbers[n] for n in node.all_input_nodes),
                0 if node.op == "placeholder" and node not in info.overwritten else bytes_of(node),
                None if keep is None else round(keep * PICOSECONDS),
                None if again is None else round(again * PICOSECONDS),
                node in asked,
            )
        )
    return Priced(Problem(tuple(values)), nodes)


def _keep(node: Node, info: NodeInfo, device: Device, returned: set[Node]) -> float | None:
    """Seconds that keeping a value takes; None if it is not kept as it is."""
    if is_size(node):
        return 0.0
    if tensor_of(node) is None or node.op == "get_attr" or is_view(node):
        return None
    if compat.wants_recompute(node) and not is_input_of_a_region(node) and may_be_repeated(node):
        return None
    if node.op == "placeholder":
        return 2 * bytes_of(node) / device.bandwidth if node in info.overwritten else 0.0
    once = _reading(node, device)
    return once if node in returned or not _stays_in_kernel(node, device) else 2 * once


def _reading(node: Node, device: Device) -> float:
    return bytes_of(node) / device.bandwidth


def _again(node: Node, info: NodeInfo, device: Device) -> float | None:
    """Seconds that making a value again takes; None if it must not be."""
    if node.op == "get_attr" or node.target is operator.getitem or is_view(node):
        return 0.0
    if node.op != "call_function" or is_size(node) or not may_be_repeated(node):
        return None
    if not compat.wants_recompute(node) and any(_base(operand) in info.buffers for operand in node.all_input_nodes):
        return None
    if compat.must_be_saved(node) or (compat.wants_recompute(node) and is_input_of_a_region(node)):
        return None
    return fused_time_of(node, device) if device.fuses and fuses(node) else time_of(node, device)


def is_input_of_a_region(node: Node) -> bool:
    """Whether a checkpointed region reads what another one made: it is kept, as eager keeps the inputs of each region."""
    own = compat.checkpointed_in(node)
    return any((region := compat.checkpointed_in(user)) is not None and region != own for user in node.users)


def _base(node: Node) -> Node:
    """What a value is a view of, or itself."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def is_view(node: Node) -> bool:
    """Whether a value is another form of an operand, or one of several pieces of it: nothing is computed."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem and isinstance(value_of(node.args[0]), (list, tuple)):
        return is_view(node.all_input_nodes[0])
    return effect_of(node).is_view


def _stays_in_kernel(node: Node, device: Device) -> bool:
    """Whether nobody in the forward would write a value to memory: it is computed and read inside of one kernel."""
    return device.fuses and fuses(node) and _is_read_in_kernels(node)


def _is_read_in_kernels(node: Node) -> bool:
    """Whether all that reads a value, or a view of it, can compute it on the way."""
    return all(fuses(u) or reduces(u) or (is_view(u) and _is_read_in_kernels(u)) for u in node.users)
