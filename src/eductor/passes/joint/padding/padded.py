"""Replaces products of a graph by padded ones, and slices their results."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, Rewriter, difference, value_of
from eductor.graph.values.meta import is_backward
from eductor.passes.functional.products import FACTORS
from eductor.passes.joint.padding.plan import Dim, MatrixProduct, Pads
from eductor.passes.joint.padding.products import accepts_any_strides

aten = torch.ops.aten


class PaddedProducts:
    """Replaces products by padded ones; an operand that several of them pad alike is padded once."""

    def __init__(self, graph: GraphView, rewrite: Rewriter) -> None:
        self.graph = graph
        self.rewrite = rewrite
        self._padded: dict[Any, Node] = {}

    def put(self, node: Node, product: MatrixProduct, pads: Pads) -> None:
        """Replaces a product by a padded one, sliced to its size."""
        bound = self.graph.bind(node)
        assert isinstance(bound, Bound)
        left, right = FACTORS[bound.packet]
        arguments = {
            **bound.arguments,
            left: self._pad(bound[left], node, pads.of("m", "k"), product.left.along == "m"),
            right: self._pad(bound[right], node, pads.of("k", "n"), product.right.along == "k"),
        }
        if product.bias is not None:
            arguments["self"] = self._pad(bound["self"], node, _of_bias(bound["self"], product, pads))
        args, kwargs = Bound(bound.op, arguments, bound.given).call()
        made = self.rewrite.insert(bound.op, *args, before=node, **kwargs)
        rank = value_of(node).dim()
        for dim, name in ((rank - 2, "m"), (rank - 1, "n")):
            if getattr(pads, name):
                made = self.rewrite.insert(aten.slice, made, dim, 0, getattr(product, name), before=node)
        if difference(value_of(node), value_of(made)) and not accepts_any_strides(self.graph, node):
            made = self.rewrite.insert(aten.clone, made, memory_format=torch.contiguous_format, before=node)
        self.rewrite.replace(node, made)

    def _pad(self, operand: Node, before: Node, by: tuple[int, ...], transposed: bool = False) -> Node:
        """An operand with zeros added to its last dimensions; a transposed matrix stays transposed."""
        if not any(by):
            return operand
        key = (operand, by, transposed, is_backward(before))
        found = self._padded.get(key)
        if found is None or not self._is_reusable(found, operand, before):
            found = self._padded[key] = self._make(operand, before, by, transposed)
        return found

    def _is_reusable(self, padded: Node, operand: Node, before: Node) -> bool:
        return padded < before and bool(self.graph.effects.unwritten([operand], padded, before))

    def _make(self, operand: Node, before: Node, by: tuple[int, ...], transposed: bool) -> Node:
        insert = partial(self.rewrite.insert, before=before)
        if not transposed:
            return insert(aten.constant_pad_nd, operand, _amounts(by))
        rank = value_of(operand).dim()
        swap = [*range(rank - 2), rank - 1, rank - 2]
        rows = insert(aten.constant_pad_nd, insert(aten.permute, operand, swap), _amounts(by[::-1]))
        return insert(aten.permute, rows, swap)


def _amounts(by: tuple[int, ...]) -> list[int]:
    """Padding as the operator takes it: before and after each dimension, the last one first."""
    return [amount for added in reversed(by) for amount in (0, added)]


def _of_bias(bias: Node, product: MatrixProduct, pads: Pads) -> tuple[int, ...]:
    """By how much each dimension of a bias grows; broadcast dimensions do not."""
    assert product.bias is not None
    dims: tuple[Dim, ...] = ("m", "n")
    own = dims[2 - value_of(bias).dim() :]
    return tuple(getattr(pads, dim) if dim in product.bias.dims else 0 for dim in own)
