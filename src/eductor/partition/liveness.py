"""How much memory forward and backward take at their peak, by when each value is made and last read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch.fx import Node

from eductor.cost import Device, bytes_of, is_pointwise
from eductor.graph.node_effects import effect_of
from eductor.graph.order import ancestors
from eductor.partition.node_info import NodeInfo, backward_order, read_by


def peak_of(info: NodeInfo, saved: Sequence[Node], device: Device) -> int:
    """Bytes that are held at once, at most, in a forward and the backward after it, beyond the inputs.

    Where pointwise operators fuse, what only they read never gets memory of its own.
    """
    forward = ancestors((*info.returns, *info.forward_acts, *saved))
    order = [n for n in info.nodes if n in forward and n not in info.primals]
    outputs = [n for n in info.returns if isinstance(n, Node)]
    kept = [n for n in saved if n not in info.primals]
    before = _peak(order, [], [*outputs, *kept], device)
    gradients = [n for n in info.gradients if isinstance(n, Node)]
    after = _peak(backward_order(info, saved), [*kept, *info.tangents], gradients, device)
    return max(before, after)


def _peak(order: Sequence[Node], given: Sequence[Node], returned: Sequence[Node], device: Device) -> int:
    """The most that is held while nodes run in this order: what is given is freed after its last reader."""
    owner = _owners([*given, *order])
    last: dict[Node, int] = {}
    for i, node in enumerate(order):
        for operand in (node, *read_by(node)):
            if operand in owner:
                last[owner[operand]] = i
    last.update({owner[node]: len(order) for node in returned if node in owner})
    size_of = _sizes(set(order), set(returned), device)
    live = sum(bytes_of(node) for node in {owner[node] for node in given})
    peak = live
    ends: dict[int, list[Node]] = {}
    for node, at in last.items():
        ends.setdefault(at, []).append(node)
    for i, node in enumerate(order):
        if owner[node] is node:
            live += size_of(node)
            peak = max(peak, live)
        live -= sum(size_of(dead) for dead in ends.get(i, ()))
    return peak


def _owners(nodes: Iterable[Node]) -> dict[Node, Node]:
    """Whose memory each value has: its own, or that of what it is a view of."""
    owner: dict[Node, Node] = {}
    for node in nodes:
        base = next((n for n in effect_of(node).shares if n in owner), None) if node.op == "call_function" else None
        owner[node] = node if base is None else owner[base]
    return owner


def _sizes(computed: set[Node], returned: set[Node], device: Device) -> Callable[[Node], int]:
    """The bytes that a value takes: none if it never leaves a kernel."""

    def size(node: Node) -> int:
        if device.fuses and node in computed and node not in returned and is_pointwise(node):
            if all(is_pointwise(user) for user in node.users if user in computed):
                return 0
        return bytes_of(node)

    return size
