"""Cats of pieces and pieces of cats: copies each element at most once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_equal, known_true, tensor_of, value_of
from eductor.graph.core_rewriter import in_core_operators
from eductor.passes.functional.layout_safety import may_change_strides
from eductor.pipeline.base import Context
from eductor.views import concat_nest, fuse_concat, source_view_through

aten = torch.ops.aten

MOST_OPERANDS = 512
"""Code for very wide cats is slow to make."""


@dataclass(frozen=True, slots=True)
class Cat:
    """A row-major cat whose operands have its dtype and rank."""

    node: Node
    dim: int
    operands: tuple[Node, ...]
    starts: tuple[Any, ...]


def cat_of(graph: GraphView, node: Any) -> Cat | None:
    """A cat as it is read here; None for any other value."""
    bound = graph.bind(node) if isinstance(node, Node) and graph.is_call(node, aten.cat) else None
    whole = tensor_of(node)
    if not isinstance(bound, Bound) or whole is None or not isinstance(bound["dim"], int):
        return None
    operands, values = tuple(bound["tensors"]), [tensor_of(x) for x in bound["tensors"]]
    if not all(v is not None and v.dtype == whole.dtype and v.dim() == whole.dim() for v in (whole, *values)):
        return None
    # With four dimensions or more, the strides of a cat may depend on those of its operands.
    if not all(v is not None and is_row_major(v) for v in (whole, *(values if whole.dim() > 3 else ()))):
        return None
    dim = bound["dim"] % whole.dim()
    sizes = [value_of(x).shape[dim] for x in operands]
    return Cat(node, dim, operands, tuple(itertools.accumulate(sizes, initial=0)))


def splitwithsizes_cat(graph: GraphView, rewrite: Rewriter, node: Node, context: Context) -> None:
    """A cat of all pieces of a tensor, in their order, is the tensor: a copy of it where it must be one."""
    nest = concat_nest(graph, node)
    if isinstance(nest, No) or not nest.is_one:
        return
    if nest.is_whole:
        fuse_concat(graph, in_core_operators(rewrite), nest, context)
    else:
        rewrite.reject("it has not all pieces of the tensor in their order", node)


def cat_splitwithsizes(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """Replaces a piece of a cat that is within one of its operands by a piece of that operand."""
    piece = _piece(graph, node)
    if piece is None:
        return
    cat, start, length = piece
    at = next((i for i in range(len(cat.operands)) if _lies_within(start, length, *cat.starts[i : i + 2])), None)
    if at is None:
        rewrite.reject("it is not within one operand of the cat", node, cat.node)
        return
    operand, first = cat.operands[at], start - cat.starts[at]
    value = value_of(operand)
    is_all = known_equal(length, value.shape[cat.dim])
    if not is_all and not (isinstance(first, int) and isinstance(length, int)):
        rewrite.reject("it is a piece of symbolic size", node, cat.node)
        return
    if not is_row_major(value):
        rewrite.reject(f"{operand.name} is not row-major, as the piece is", node, cat.node)
        return
    stand_in = value if is_all else _narrowed(value, cat.dim, first, length)
    verdict = graph.effects.may_alias(node, operand) and may_change_strides(graph, node, stand_in)
    if not verdict:
        rewrite.reject(verdict, node, cat.node)
        return
    taken_from = node.args[0]
    if is_all:
        rewrite.replace(node, operand)
    else:
        rewrite.replace(node, aten.slice.Tensor, operand, cat.dim, first, first + length)
    while isinstance(taken_from, Node) and taken_from is not cat.node and not taken_from.users:
        dead, taken_from = taken_from, taken_from.args[0]
        rewrite.erase(dead)
    if len(cat.node.users) == 1:  # an earlier cat may have refused it, because this piece used it, too
        cat_slice_cat(graph, rewrite, next(iter(cat.node.users)))


def cat_slice_cat(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """Flattens a cat whose operand is a cat along the same dimension without other users."""
    outer = cat_of(graph, node)
    inner = [cat_of(graph, x) for x in outer.operands] if outer is not None else []
    if outer is None or not any(inner):
        return
    flat: list[Node] = []
    for operand, cat in zip(outer.operands, inner, strict=True):
        if cat is None:
            flat.append(operand)
        elif cat.dim != outer.dim:
            rewrite.reject("the inner cat is along another dimension", node, operand)
            flat.append(operand)
        elif list(operand.users) != [node]:
            rewrite.reject("the inner cat is used elsewhere", node, operand)
            flat.append(operand)
        else:
            flat += cat.operands
    if len(flat) > MOST_OPERANDS:
        rewrite.reject(f"the cat would have more than {MOST_OPERANDS} operands", node)
    elif len(flat) > len(outer.operands):
        rewrite.replace(node, aten.cat, flat, outer.dim)


def _piece(graph: GraphView, node: Node) -> tuple[Cat, Any, Any] | None:
    """The cat of which a value is a slice along its dimension, with the start and the length of the slice."""
    found = source_view_through(graph, node, lambda _: False)
    cat = cat_of(graph, found.index_map.source) if found is not None and found.kinds == {"split"} else None
    if found is None or cat is None:
        return None
    index_map, others = found.index_map, [d for d in range(len(found.index_map.dims)) if d != cat.dim]
    is_whole = all(known_equal((index_map.starts[d], index_map.shape[d]), (0, index_map.sizes[d])) for d in others)
    if not is_whole or any(mode.step != 1 for mode in index_map.dims[cat.dim]):
        return None
    return cat, index_map.starts[cat.dim], index_map.shape[cat.dim]


def _lies_within(start: Any, length: Any, first: Any, end: Any) -> bool:
    return known_true(start >= first) and known_true(start + length <= end)


def _narrowed(value: torch.Tensor, dim: int, first: int, length: int) -> torch.Tensor:
    with value.fake_mode, torch.no_grad():  # type: ignore[attr-defined]
        return value.narrow(dim, first, length)
