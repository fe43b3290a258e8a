"""What a cut of a graph between two calls costs: values that stay in registers without it; and what calls take in all."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate

from torch.fx import Node

from eductor.cost import Device, bytes_of, copy_time, fused_time_of, fuses, reduces, time_of
from eductor.graph.effects.bases import base_node, is_view

_OPERAND = 8.0
"""A small price of each value that crosses a cut: of equal cuts, the one with fewest operands is taken."""
_NEVER = float(1 << 60)


class Cuts:
    """The price in bytes of a cut before each call of a graph.

    Two calls can be one kernel only if they have the same level: the number of kernels that fuse with nothing, such as
    matrix products, on the longest path to them.
    """

    def __init__(self, calls: Sequence[Node], outputs: Iterable[Node]) -> None:
        self._calls = calls
        self._places = {call: i for i, call in enumerate(calls)}
        self._outputs = set(map(base_node, outputs))
        self._is_fused = {call: is_fused(call) for call in calls}
        self._levels: dict[Node, int] = {}
        for call in calls:
            below = max((self._levels.get(operand, 0) for operand in call.all_input_nodes), default=0)
            self._levels[call] = below + self._is_alone(call)
        self._changes = [0.0] * (len(calls) + 1)
        self._fused = [0.0] * (len(calls) + 1)
        self._inside: set[Node] = set()
        for value, readers in self._readers().items():
            self._price(value, readers)
        for call in calls:
            if call.target is operator.getitem:
                self._add(self._places.get(call.all_input_nodes[0]), self._places[call], _NEVER)
        self.prices = list(accumulate(self._changes))
        self.splits = [count > 0 for count in accumulate(self._fused)]
        """Whether a cut before each call makes two kernels of one."""

    def _is_alone(self, call: Node) -> bool:
        """Whether a call is a kernel that fuses with nothing."""
        return not (self._is_fused[call] or call.target is operator.getitem or is_view(call))

    def _readers(self) -> dict[Node, list[int]]:
        """The places of the calls that read each value, directly or through views."""
        readers: dict[Node, list[int]] = {}
        for i, call in enumerate(self._calls):
            if not is_view(call):
                for operand in call.all_input_nodes:
                    readers.setdefault(base_node(operand), []).append(i)
        return readers

    def _price(self, value: Node, readers: Sequence[int]) -> None:
        size, place = max(bytes_of(value), _OPERAND), self._places.get(value)
        levels: dict[int, list[int]] = {}
        for i in readers:
            if self._is_fused[self._calls[i]]:
                levels.setdefault(self._levels[self._calls[i]], []).append(i)
        if place is not None:
            together = levels.get(self._levels[value], ()) if self._is_fused[value] else ()
            if together:
                self._add(place, together[-1], size)  # it is read again
                self._add(place, together[-1], 1, self._fused)
            if together and len(together) == len(readers) and value not in self._outputs:
                self._inside.add(value)
                self._add(place, readers[-1], size)  # it is written for the cut alone
            self._add(place, readers[-1], _OPERAND)
        for same in levels.values():
            self._add(same[0], same[-1], size / 2)  # it is read by two kernels

    def time(self, calls: Iterable[Node], device: Device) -> float:
        """The estimated seconds of calls, where those that fuse write only what another kernel reads."""
        seconds = 0.0
        for call in calls:
            if self._is_alone(call):
                seconds += time_of(call, device)
            elif self._is_fused[call] and call.target is not operator.getitem:
                seconds += fused_time_of(call, device) if fuses(call) else 0.0
                seconds += 0.0 if call in self._inside else copy_time(bytes_of(call), device)
        return seconds

    def kernels(self, calls: Iterable[Node]) -> int:
        """About how many kernels calls are."""
        return sum(self._is_alone(c) or (self._is_fused[c] and c not in self._inside) for c in calls)

    def _add(self, first: int | None, last: int, price: float, changes: list[float] | None = None) -> None:
        """Add a price to all cuts after one call and before or at another one."""
        changes = self._changes if changes is None else changes
        if first is not None and last > first:
            changes[first + 1] += price
            changes[last + 1] -= price


def is_fused(call: Node) -> bool:
    """Whether a call, or the call whose result it takes, is computed in a generated kernel with others."""
    if call.target is operator.getitem:
        call = call.all_input_nodes[0]
    return call.op == "call_function" and (fuses(call) or reduces(call))
