"""The peak memory of forward and backward, from the lifetime of each value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from torch.fx import Node

from eductor.cost import Device, bytes_of, is_pointwise
from eductor.graph import effect_of
from eductor.graph.effects.order import ancestors
from eductor.partition.node_info import NodeInfo, backward_order, made_ahead, read_by

Phase = Literal["forward", "backward"]


class Liveness:
    """Estimates the memory of a joint graph on a device, for given saved values.

    Where pointwise operators fuse, values that only they read are never materialized.
    """

    def __init__(self, info: NodeInfo, device: Device) -> None:
        self._info = info
        self._bytes = {node: bytes_of(node) for node in info.nodes}
        self._shares = {node: effect_of(node).shares for node in info.nodes if node.op == "call_function"}
        self._fused = {node for node in info.nodes if is_pointwise(node)} if device.fuses else set()

    def peak(self, saved: Sequence[Node], ahead: Sequence[Node] = ()) -> int:
        """The peak in bytes of a forward and its backward, beyond the inputs.

        Values `ahead` are computed at the start of the backward, and held from then on.
        """
        return max((live for _, _, live in self.timeline(saved, ahead)), default=0)

    def timeline(self, saved: Sequence[Node], ahead: Sequence[Node] = ()) -> list[tuple[Phase, Node, int]]:
        """The nodes of a forward and its backward in execution order, with the bytes live at each."""
        info, primals = self._info, set(self._info.primals)
        forward = ancestors((*info.returns, *info.forward_acts, *saved))
        outputs = [node for node in info.returns if isinstance(node, Node)]
        gradients = [node for node in info.gradients if isinstance(node, Node)]
        kept = [node for node in saved if node not in primals]
        first = made_ahead(info, saved, ahead)
        rest = backward_order(info, [*saved, *ahead])
        read_later = {operand for node in rest for operand in read_by(node)}
        held = [*ahead, *info.tangents, *(node for node in kept if not ahead or node in read_later)]
        computed = [n for n in info.nodes if n in forward and n not in primals]
        return [
            *(("forward", *step) for step in self._held(computed, [], [*outputs, *kept])),
            *(("backward", *step) for step in (self._held(first, [*kept, *info.tangents], held) if ahead else ())),
            *(("backward", *step) for step in self._held(rest, held, gradients)),
        ]

    def _held(
        self, order: Sequence[Node], given: Sequence[Node], returned: Sequence[Node]
    ) -> Iterator[tuple[Node, int]]:
        """The bytes live while each node runs, in this order: given values are freed after their last reader."""
        owner = self._owners([*given, *order])
        last: dict[Node, int] = {}
        for i, node in enumerate(order):
            for operand in (node, *read_by(node)):
                if operand in owner:
                    last[owner[operand]] = i
        last.update({owner[node]: len(order) for node in returned if node in owner})
        inside = self._inside(order, set(returned))
        size = {node: 0 if node in inside else self._bytes[node] for node in owner}
        live = sum(size[node] for node in {owner[node] for node in given})
        ends: dict[int, list[Node]] = {}
        for node, at in last.items():
            ends.setdefault(at, []).append(node)
        for i, node in enumerate(order):
            if owner[node] is node:
                live += size[node]
            yield node, live
            live -= sum(size[dead] for dead in ends.get(i, ()))

    def _owners(self, nodes: Iterable[Node]) -> dict[Node, Node]:
        """The value that owns each value's memory: itself, or the base of a view."""
        owner: dict[Node, Node] = {}
        for node in nodes:
            base = next((n for n in self._shares.get(node, ()) if n in owner), None)
            owner[node] = node if base is None else owner[base]
        return owner

    def _inside(self, order: Sequence[Node], returned: set[Node]) -> set[Node]:
        """The values that are fused away, and never materialized."""
        computed, fused = set(order), self._fused
        candidates = (node for node in order if node in fused and node not in returned)
        return {node for node in candidates if all(user in fused for user in node.users if user in computed)}
