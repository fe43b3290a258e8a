"""One random call of a graph, and the seeded tensors that can replace it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor import ops
from eductor.graph import Bound, Rewriter, bind, is_row_major, known_equal, tensor_of
from eductor.graph.values.meta import is_backward, row_major_strides
from eductor.patterns.match.transparent import CAST

aten = torch.ops.aten


Kind = tuple[Any, ...]
"""A seeded operator, and the arguments that select its distribution."""

UNIFORM: Kind = (ops.random.random.default, "rand")
NORMAL: Kind = (ops.random.random.default, "randn")


def integers(low: Any, high: Any) -> Kind:
    """Numbers in [low, high)."""
    return (ops.random.random_integers.default, low, high)


class Seeds:
    """The seed tensors of a graph, one per device; the backward has its own, since each of its runs draws again."""

    def __init__(self) -> None:
        self._indices: dict[Node, int] = {}
        self._counts: dict[Any, int] = {}
        self._tensors: dict[Any, Node] = {}

    def reserve(self, draw: Draw) -> None:
        """Reserves one more seed."""
        count = self._counts.get(draw.place, 0)
        self._indices[draw.node] = count
        self._counts[draw.place] = count + 1

    def of(self, draw: Draw) -> tuple[Node, int]:
        """The seed tensor of a call, drawn before the first call that needs it, and the index of its seed there."""
        if draw.place not in self._tensors:
            count, device = self._counts[draw.place], draw.value.device
            self._tensors[draw.place] = draw.rewrite.insert(ops.random.seeds, count, device=device, before=draw.node)
        return self._tensors[draw.place], self._indices[draw.node]


@dataclass(frozen=True, slots=True)
class Draw:
    """A random call, its random tensor, the order of its dimensions in memory, and the source of its sizes."""

    rewrite: Rewriter
    node: Node
    bound: Bound
    value: torch.Tensor
    order: list[int]
    sizes: list[Any] | Node
    seeds: Seeds

    @property
    def place(self) -> tuple[torch.device, bool]:
        """Which seed tensor it uses: that of its device, in forward or backward."""
        return self.value.device, is_backward(self.node)

    def call(self, op: Any, *args: Any) -> Node:
        """Inserts a call before this one."""
        return self.rewrite.insert(op, *args, before=self.node)

    def chance(self, probability: Any) -> Node:
        """A boolean tensor, true with this probability: a number or a tensor."""
        given = tensor_of(probability)
        dtype = torch.float32 if given is None else torch.promote_types(given.dtype, torch.float32)
        return self.call(aten.lt, self.numbers(UNIFORM, dtype), probability)

    def cast(self, made: Node) -> Node:
        """A tensor cast to the dtype of the call."""
        found = tensor_of(made)
        assert found is not None
        return made if found.dtype is self.value.dtype else self.call(CAST, made, self.value.dtype)

    def numbers(self, kind: Kind, dtype: torch.dtype | None = None) -> Node:
        """A seeded tensor with the strides of the call: dense in physical order, then permuted."""
        op, seeds, index, *how = self._seeded(kind)
        dense = self.rewrite.insert(op, seeds, 0, *how, dtype=dtype or self.value.dtype, before=self.node)
        # The seed does not affect the metadata, so a second draw of this kind is not evaluated.
        self.rewrite.update(dense, args=(seeds, index, *how), respelled=True)
        if self._is_in_order:
            return dense
        return self.call(aten.permute, dense, [self.order.index(d) for d in range(len(self.order))])

    def become(self, kind: Kind) -> None:
        """Turns the call itself into a seeded tensor; its metadata is known, so nothing is evaluated."""
        if not self._is_in_order:
            self.rewrite.replace(self.node, self.numbers(kind))
            return
        op, *args = self._seeded(kind)
        kwargs = {"dtype": self.value.dtype}
        self.rewrite.update(self.node, target=op, args=tuple(args), kwargs=kwargs, respelled=True)

    @property
    def _is_in_order(self) -> bool:
        return self.order == sorted(self.order)

    def _seeded(self, kind: Kind) -> list[Any]:
        """A seeded operator and its arguments, without the dtype."""
        seeds, index = self.seeds.of(self)
        size = [self._size(d) for d in self.order]
        op, *how = kind
        return [op, seeds, index, size, *how]

    def _size(self, dim: int) -> Any:
        if not isinstance(self.sizes, Node):
            return self.sizes[dim]
        size = self.value.shape[dim]
        return self.call(aten.sym_size.int, self.sizes, dim) if isinstance(size, torch.SymInt) else size


def physical_order(value: torch.Tensor) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost, if a dense tensor in that order has these strides."""
    dims = list(range(value.dim()))
    if is_row_major(value):
        return dims
    if any(isinstance(s, torch.SymInt) for s in value.stride()):
        return None
    dims.sort(key=lambda d: (value.stride(d), not known_equal(value.shape[d], 1)), reverse=True)
    dense = row_major_strides([value.shape[d] for d in dims])
    return dims if known_equal([value.stride(d) for d in dims], list(dense)) else None


def source_of_sizes(bound: Bound, value: torch.Tensor) -> list[Any] | Node | None:
    """The sizes of a call as arguments, or an operand of that shape, from which they can be read."""
    sizes = list(value.shape)
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        return sizes
    named = next((bound[name] for name in ("size", "shape") if name in bound.arguments), None)
    if named is not None:
        return list(named)
    operands = [(x, tensor_of(x)) for x in bound.arguments.values() if isinstance(x, Node)]
    like = next((x for x, given in operands if given is not None and known_equal(list(given.shape), sizes)), None)
    return _without_contents(like) if like is not None else None


def _without_contents(node: Node) -> list[Any] | Node:
    """The source of the sizes of an empty tensor, which a call uses only for its shape; any other node itself."""
    made = bind(node)
    if isinstance(made, Bound) and made.packet is aten.empty_like:
        return _without_contents(made["self"])
    if isinstance(made, Bound) and made.packet in (aten.empty, aten.new_empty):
        return list(made["size"])
    return node
