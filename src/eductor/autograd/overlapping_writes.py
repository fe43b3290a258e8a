"""Refuses writes to memory that the same call reads elsewhere: eager raises, or its result depends on the order.

a[1:].add_(a[:-1])      a functional graph would read all old values first
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from eductor import compat
from eductor.autograd.functionalize import written_by
from eductor.compat import FakeTensor
from eductor.errors import Unsupported
from eductor.graph.values.meta import tensor_of


def refuse_overlapping_writes(module: GraphModule) -> None:
    """Raises for the first write of a traced graph, in which views still share their memory."""
    with compat.unset_fake_temporarily(), torch.no_grad():
        for node in module.graph.nodes:
            written, read = _operands(node)
            if any(_overlaps_itself(w) for w in written):
                raise Unsupported(f"{node.target}, which writes an element in several places of a tensor")
            if any(_overlap(w, x, node.target) for w in written for x in read):
                raise Unsupported(f"{node.target}, which writes memory that it also reads in another place")


def _operands(node: Node) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that a call writes, and the others that it gets, which may be the same."""
    written = _nodes(written_by(node))
    others = _nodes([node.args, node.kwargs]) if written else []
    for given in (*written, *_masks(node)):
        others.remove(given)
    return _strided(written), _strided(others)


def _nodes(values: Any) -> list[Node]:
    return [x for x in pytree.tree_leaves(values) if isinstance(x, Node)]


def _strided(nodes: Iterable[Node]) -> list[torch.Tensor]:
    found = map(tensor_of, nodes)
    return [x for x in found if isinstance(x, FakeTensor) and x.layout is torch.strided]


def _overlaps_itself(written: torch.Tensor) -> bool:
    place = _Place.of(written)
    return place is not None and not place.is_nested() and int(place.marked(place.end).sum()) != place.count


def _overlap(written: torch.Tensor, read: torch.Tensor, target: Any) -> bool:
    """Whether a call writes what it reads from elsewhere; a place may be read where each element is on its own."""
    if _storage(written) != _storage(read):
        return False
    a, b = _Place.of(written), _Place.of(read)
    if a is None or b is None:
        return False
    if a == b:
        return not _is_elementwise(target)
    end = max(a.end, b.end)
    return bool((a.marked(end) & b.marked(end)).any())


def _is_elementwise(target: Any) -> bool:
    name = target._schema.name
    is_listed = name in ("aten::copy_", "aten::masked_fill_") or name.startswith("aten::_foreach")
    return torch.Tag.pointwise in target.tags or is_listed


def _masks(node: Node) -> list[Node]:
    """The operands that select elements by flags: their indices are computed before the write."""
    if node.target is not torch.ops.aten.index_put_.default:
        return []
    indices = [(x, tensor_of(x)) for x in _nodes(node.args[1])]
    return [x for x, value in indices if value is not None and value.dtype in (torch.bool, torch.uint8)]


@dataclass(frozen=True)
class _Place:
    """The bytes of a tensor in its storage."""

    offset: int
    dims: tuple[tuple[int, int], ...]
    """The size and the stride of each dimension, the bytes of an element last."""

    @staticmethod
    def of(value: torch.Tensor) -> _Place | None:
        """With the sizes of the first call for those that may change; None if they depend on data."""
        each = value.element_size()
        numbers = [compat.number_at(n, {}) for n in (value.storage_offset(), *value.shape, *value.stride())]
        if None in numbers:
            return None
        offset, sizes, strides = numbers[0], numbers[1 : value.dim() + 1], numbers[value.dim() + 1 :]
        return _Place(offset * each, (*((n, s * each) for n, s in zip(sizes, strides, strict=True)), (each, 1)))

    @property
    def count(self) -> int:
        return math.prod(n for n, _ in self.dims)

    @property
    def end(self) -> int:
        return self.offset + sum((n - 1) * stride for n, stride in self.dims) + 1 if self.count else 0

    def is_nested(self) -> bool:
        """Whether each stride is larger than all that smaller strides reach, so that no elements overlap."""
        reach = 0
        for n, stride in sorted(self.dims, key=lambda dim: dim[1]):
            if n > 1 and stride <= reach:
                return False
            reach += (n - 1) * stride
        return True

    def marked(self, size: int) -> torch.Tensor:
        """For each of the first bytes of the storage, whether it belongs to the tensor."""
        flags = torch.zeros(size, dtype=torch.bool)
        if self.count:
            dims = [(n if stride else 1, stride) for n, stride in self.dims]
            flags.as_strided([n for n, _ in dims], [stride for _, stride in dims], self.offset).fill_(True)
        return flags


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)
