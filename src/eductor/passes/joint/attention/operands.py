"""Query, key and value as the products take them, and nodes before the products that the fused call can absorb."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, known_equal, tensor_of
from eductor.passes.joint.attention.axes import Axes
from eductor.passes.joint.attention.masks import Groups, permuted, reshaped
from eductor.passes.joint.attention.numbers import number_of
from eductor.passes.joint.attention.softmax import forward_users
from eductor.views.index_map import IndexMap
from eductor.views.source_views import view_call

aten = torch.ops.aten
_FREE = (aten.alias, aten.expand)
_COPIES = (aten.clone, aten.contiguous)


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of the call, and how it is rearranged to the call's four dimensions."""

    node: Node
    swapped: bool
    """Whether the product takes it with its last two dimensions exchanged."""
    order: tuple[int | None, ...] | None = None
    """Which of its dimensions are those of the call, None for one of size 1; None for a reshape of the product's operand."""
    factor: float = 1.0
    """The scale that the absorbed nodes apply."""
    repeats: int = 1
    """How often the absorbed nodes repeat each head."""
    nodes: tuple[Node, ...] = ()
    """The absorbed nodes, from its node to the product."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """How an input becomes query, key or value of the call."""

    slot: int
    swapped: bool
    order: tuple[int | None, ...] | None
    of_scores: bool
    """Whether it has the batches in the order of the first product; the value has them in the order of the second one."""

    def __call__(self, values: Sequence[Any], sizes: Sequence[Any], groups: Groups) -> torch.Tensor:
        value: torch.Tensor = values[self.slot]
        value = self._ordered(value) if self.order is not None else self._split(value, sizes, groups)
        # The kernels require contiguous rows.
        return value if known_equal(value.stride(-1), 1) else value.contiguous()

    def _ordered(self, value: torch.Tensor) -> torch.Tensor:
        assert self.order is not None
        kept = [d for d in self.order if d is not None]
        value = permuted(value, [*kept, *(d for d in range(value.dim()) if d not in kept)])
        sizes = iter(value.shape)
        return reshaped(value, [1 if d is None else next(sizes) for d in self.order])

    def _split(self, value: torch.Tensor, sizes: Sequence[Any], groups: Groups) -> torch.Tensor:
        value = value.transpose(-1, -2) if self.swapped else value
        batches = [a for group in groups[:2] for a in group]
        rest = [*value.shape[-2:]]
        if self.of_scores and batches != sorted(batches):
            value = value.reshape([sizes[a] for a in sorted(batches)] + rest)
            order = [sorted(batches).index(a) for a in batches]
            value = value.permute([*order, len(order), len(order) + 1])
        return reshaped(value, [math.prod(sizes[a] for a in group) for group in groups[:2]] + rest)


def widened(graph: GraphView, operand: Operand, axes: Axes, groups: Groups) -> Operand:
    """An operand that absorbs copies for the product, a scale, and the repetition of heads."""
    tensor = tensor_of(operand.node)
    assert tensor is not None
    batches = [a for group in groups[:2] for a in group]
    if batches != sorted(batches):
        return operand
    shape = [axes.size(group) for group in groups[:2]] + list(tensor.shape[-2:])
    found = best = operand
    while (further := _step(graph, found)) is not None:
        found = further
        order = _order(graph, found, shape)
        if order is None:
            continue
        found = replace(found, order=order)
        if found.factor != best.factor or graph.is_call(found.nodes[0], *_COPIES):
            best = found
        repeated = _repeated(graph, found)
        if repeated is not None:
            return repeated
    return best


def _step(graph: GraphView, operand: Operand) -> Operand | None:
    """The operand one node further up, if the node has no other user."""
    node = operand.node
    bound = graph.bind(node) if node.op == "call_function" else None
    source = bound.get("self") if isinstance(bound, Bound) else None
    here, there = tensor_of(node), tensor_of(source)
    if not isinstance(bound, Bound) or not isinstance(source, Node) or len(forward_users(node)) != 1:
        return None
    if here is None or there is None or there.dtype != here.dtype:
        return None
    further = replace(operand, node=source, nodes=(node, *operand.nodes))
    if bound.packet in _COPIES or view_call(graph, node) is not None:
        return further
    if not known_equal(tuple(here.shape), tuple(there.shape)):
        return None
    if bound.packet in (aten.mul, aten.div) and bound.get("rounding_mode") is None:
        number = number_of(graph, bound["other"])
        if number is not None and number and math.isfinite(number):
            return replace(further, factor=operand.factor * (number if bound.packet is aten.mul else 1 / number))
    return further if bound.packet in _FREE else None


def _order(graph: GraphView, operand: Operand, shape: list[Any]) -> tuple[int | None, ...] | None:
    """Which dimensions of a value become the call's four through the absorbed nodes."""
    tensor = tensor_of(operand.node)
    assert tensor is not None
    whole = index_map = IndexMap.whole(operand.node, tuple(tensor.shape))
    for node in operand.nodes:
        reading = view_call(graph, node)
        moved = reading.apply(index_map) if reading is not None else index_map
        if moved is None:
            return None
        index_map = moved
    four = index_map.reshape(shape)
    if four is None or four.sizes is not whole.sizes:
        return None
    dims = [*four.dims[:2], *(four.dims[:1:-1] if operand.swapped else four.dims[2:])]
    if any(len(modes) > 1 or not all(modes == whole.dims[m.dim] for m in modes) for modes in dims):
        return None
    order = tuple(modes[0].dim if modes else None for modes in dims)
    return order if {d for d in order if d is not None} == {m.dim for m in whole.modes} else None


def _repeated(graph: GraphView, operand: Operand) -> Operand | None:
    """`x[:, :, None].expand(b, h, n, t, d).reshape(b, h * n, t, d)`: each head is repeated n times."""
    head = operand.order[1] if operand.order is not None else None
    result = tensor_of(operand.node)
    if head is None or result is None or result.dim() != 4:
        return None
    nodes: list[Node] = []
    node = operand.node
    for wanted in ((aten.view, aten.reshape, aten._unsafe_view), _COPIES, (aten.expand,), (aten.unsqueeze, aten.view)):
        if not graph.is_call(node, *wanted) or len(forward_users(node)) != 1:
            if wanted is _COPIES:  # the copy may be missing
                continue
            return None
        bound = graph.bind(node)
        assert isinstance(bound, Bound)
        nodes.insert(0, node)
        node = bound["self"]
    source, single, many = (tensor_of(n) for n in (node, *nodes[:2]))
    if source is None or single is None or many is None or source.dim() != 4 or many.dim() != 5:
        return None
    before, after = list(source.shape[: head + 1]), list(source.shape[head + 1 :])
    times = many.shape[head + 1]
    fits = isinstance(times, int) and known_equal(list(single.shape), [*before, 1, *after])
    if not fits or not known_equal(list(many.shape), [*before, times, *after]):
        return None
    if not known_equal(list(result.shape), [*before[:-1], before[-1] * times, *after]):
        return None
    return replace(operand, node=node, nodes=(*nodes, *operand.nodes), repeats=int(times))
