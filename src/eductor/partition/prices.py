"""Prices saving and recomputing each value of a joint graph, as a numeric problem.

Saving a value costs a read in the backward, and a write in the forward if it would otherwise be fused away. Recomputing
it costs a kernel. Where pointwise operators fuse into their readers, it costs their arithmetic and the additional reads;
and a write if a matrix product reads it. Parameters and other inputs are saved for free, unless a write to them would go
undetected: then they are saved as a copy.

Views and tuples are recomputed from their operands, and copies of parameters from the parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Set
from dataclasses import dataclass
from fractions import Fraction

from torch.fx import Node

from eductor import compat
from eductor.cost import Device, bytes_of, copy_time, fused_time_of, fuses, reduces, time_of
from eductor.graph import tensor_of
from eductor.partition.node_info import NodeInfo, is_size, may_be_repeated
from eductor.partition.problem import Problem, Value
from eductor.partition.saves import SavedForm, forms_of

PICOSECONDS = 1e12

WORTH = Fraction(3, 2)
"""The bytes of extra memory traffic that one saved byte less is worth, where an engine fuses."""


def price_of_a_byte(device: Device) -> Fraction:
    """The price of saving a byte, in picoseconds, beside the time that it takes."""
    return WORTH * Fraction(round(1000 * PICOSECONDS / device.bandwidth), 1000) if device.fuses else Fraction(0)


@dataclass(frozen=True, slots=True)
class Priced:
    """A problem, and the node of each of its values."""

    problem: Problem
    nodes: tuple[Node, ...]

    def chosen(self, numbers: Set[int]) -> list[Node]:
        """The nodes of some values, in the order of the graph."""
        return [self.nodes[number] for number in sorted(numbers)]


def priced(info: NodeInfo, device: Device, *, recompute: bool = True, is_limited: bool = False) -> Priced:
    """The problem of all that the backward reads, and all that this is computed from.

    `recompute` is the option. With limited memory, what the user's checkpointing only prefers to save may be recomputed.
    """
    asked = set(info.asked)
    found: set[Node] = set()
    pending = [*asked]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    nodes = tuple(node for node in info.nodes if node in found)
    numbers = {node: i for i, node in enumerate(nodes)}
    forms = forms_of(info, nodes, device)
    weights = _made_from_weights(info, nodes) if recompute and device.fuses else set()
    prices = _Prices(info, device, forms, weights, is_limited, Reads(info))
    values = []
    for node in nodes:
        keep, again = prices.keep(node), prices.again(node)
        values.append(
            Value(
                node.name,
                tuple(numbers[n] for n in node.all_input_nodes),
                prices.bytes(node),
                None if keep is None else round(keep * PICOSECONDS),
                None if again is None else round(again * PICOSECONDS),
                node in asked,
            )
        )
    return Priced(Problem(tuple(values)), nodes)


@dataclass(frozen=True, slots=True)
class _Prices:
    """The costs of a joint graph's nodes on a device, in seconds."""

    info: NodeInfo
    device: Device
    forms: dict[Node, SavedForm]
    weights: set[Node]
    is_limited: bool
    reads: Reads

    def bytes(self, node: Node) -> int:
        """The memory that saving a value takes: none for an input without a copy."""
        if node.op == "placeholder" and node not in self.info.copied:
            return 0
        return self.forms[node].bytes if node in self.forms else bytes_of(node)

    def keep(self, node: Node) -> float | None:
        """The time to save a value; None if it cannot be saved itself."""
        if is_size(node):
            return 0.0
        if tensor_of(node) is None or node.op == "get_attr" or node in self.info.views:
            return None
        if node in self.info.checkpointed and not is_input_of_a_region(node) and may_be_repeated(node):
            return None
        once = self.bytes(node) / self.device.bandwidth
        if node in self.info.copied:
            return once + copy_time(bytes_of(node), self.device)
        if node.op == "placeholder":
            return 0.0
        if self._is_made_from_a_weight(node):
            return None
        return 2 * once if node not in self.info.exposed and self._stays_in_kernel(node) else once

    def again(self, node: Node) -> float | None:
        """The time to recompute a value; None if it must not be."""
        if node in self.info.held:
            return None
        if node.op == "get_attr" or node.target is operator.getitem or node in self.info.views:
            return 0.0
        if node.op != "call_function" or is_size(node) or not may_be_repeated(node):
            return None
        if compat.must_be_saved(node) or (compat.prefers_saving(node) and not self.is_limited):
            return None
        if node in self.info.checkpointed:
            return None if is_input_of_a_region(node) else self._computing(node)
        if any(self.info.base(operand) in self.info.buffers for operand in node.all_input_nodes):
            return None
        return self._computing(node)

    def _computing(self, node: Node) -> float:
        if not (self.device.fuses and fuses(node)):
            return time_of(node, self.device)
        moved = self.reads.more(node) + (2 * bytes_of(node) if self._is_written_again(node) else 0)
        return fused_time_of(node, self.device) + moved / self.device.bandwidth

    def _is_made_from_a_weight(self, node: Node) -> bool:
        """Whether a value is derived from parameters and cheap to recompute: a cast copy, or a concatenation."""
        return node in self.weights and self.again(node) is not None and not is_input_of_a_region(node)

    def _stays_in_kernel(self, node: Node) -> bool:
        """Whether the forward fuses a value away: it is computed and read inside kernels."""
        return self.device.fuses and fuses(node) and self._is_read_in_kernels(node)

    def _is_read_in_kernels(self, node: Node) -> bool:
        """Whether all readers of a value, or of views of it, can compute it inline."""
        views = self.info.views
        return all(fuses(u) or reduces(u) or (u in views and self._is_read_in_kernels(u)) for u in node.users)

    def _is_written_again(self, node: Node) -> bool:
        """Whether a reader in the backward of a value, or of a view of it, cannot compute it inline."""
        views, late = self.info.views, self.info.late
        return any(
            self._is_written_again(u) if u in views else u in late and not (fuses(u) or reduces(u)) for u in node.users
        )


def _made_from_weights(info: NodeInfo, nodes: tuple[Node, ...]) -> set[Node]:
    """Values computed from parameters alone by operators that fuse into their readers."""
    found = set(info.parameters)
    for node in nodes:
        if (node in info.views or fuses(node)) and node.all_input_nodes and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found - info.parameters


def is_input_of_a_region(node: Node) -> bool:
    """Whether another checkpointed region reads a value: it is saved, as eager saves the inputs of each region."""
    own = compat.checkpointed_in(node)
    return any((region := compat.checkpointed_in(user)) is not None and region != own for user in node.users)


_MOST_READS = 4
"""The most reads of an inlined value: with more, an engine materializes it."""


class Reads:
    """For each value that fuses into its reader, the materialized values that are read for it."""

    def __init__(self, info: NodeInfo) -> None:
        self._info = info
        self._known: dict[Node, frozenset[Node]] = {}
        for node in info.nodes:  # operands come first
            self._known[node] = self._of(node)

    def more(self, node: Node) -> int:
        """The bytes read for a value beyond those read for its largest operand."""
        each = [_bytes(self._known[operand]) for operand in node.all_input_nodes]
        return _bytes(self._of_operands(node)) - max(each, default=0)

    def _of(self, node: Node) -> frozenset[Node]:
        if node in self._info.views:
            return self._known[node.all_input_nodes[0]]
        if not fuses(node):
            return frozenset({node})
        read = self._of_operands(node)
        return read if len(read) <= _MOST_READS else frozenset({node})

    def _of_operands(self, node: Node) -> frozenset[Node]:
        return frozenset[Node]().union(*(self._known[operand] for operand in node.all_input_nodes))


def _bytes(nodes: Iterable[Node]) -> int:
    return sum(map(bytes_of, nodes))
