"""Splits that later passes need not see: into one piece, and of a piece of another split."""

from __future__ import annotations

import operator
from typing import Literal

import torch
from torch.fx import Node

from eductor.graph import GraphView, No, Rewriter, difference, tensor_of, value_of
from eductor.graph.effects.gradient_order import same_sum_in_place_of
from eductor.pipeline.base import f32, graph_pass
from eductor.views import SPLITS, Division, division

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def remove_split_with_size_one_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Removes splits into one piece: the piece is the tensor itself.

    It pays always: a call less, and later passes trace the piece to its source.
    """
    for split in graph.find(*SPLITS):
        found = division(graph, split)
        if found is None or len(found.sizes) != 1:
            rewrite.reject("it has several pieces", split)
            continue
        for piece in list(split.users):
            if verdict := _is_operand(graph, split, piece, found.operand):
                rewrite.replace(piece, found.operand)
            else:
                rewrite.reject(verdict, piece)


def _is_operand(graph: GraphView, split: Node, piece: Node, operand: Node) -> Literal[True] | No:
    """Whether the only piece of a split may be replaced by the tensor that is split."""
    if piece.target is not operator.getitem:
        return No("a use of its piece is not known")
    if unlike := difference(value_of(piece), value_of(operand)):
        return No(f"the piece differs: {unlike}")
    return (
        graph.effects.may_alias(piece, operand)
        and same_sum_in_place_of(piece, operand, through=split)
        and graph.effects.same_region((split, piece))
    )


@remove_split_with_size_one_pass.example
def one_section(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    (a,) = torch.split(x, 8, 1)
    return a.sin()


@remove_split_with_size_one_pass.example
def used_twice(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    parts = x.chunk(1, dim=-1)
    return parts[0].sin() + parts[-1].cos()


@remove_split_with_size_one_pass.refuses("several pieces")
def two_sections(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return a.sin() + b


@remove_split_with_size_one_pass.refuses("a separate output")
def returned(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.split(x, 8, 1)[0]


@graph_pass(stage="pre_grad", numerics="exact")
def merge_splits_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Merges a split with the split of one of its pieces along the same dimension.

    It pays always: one call instead of several, and later passes see that all pieces are of one tensor.
    """
    for inner in graph.find(*SPLITS):
        rewrite.record(_merge(graph, rewrite, inner), inner)


def _merge(graph: GraphView, rewrite: Rewriter, inner: Node) -> No | None:
    found = division(graph, inner)
    piece = found.operand if found is not None else None
    outer = piece.args[0] if piece is not None and _is_piece(piece) else None
    if found is None or not isinstance(outer, Node):
        return No("it does not split a piece of another split")
    around = division(graph, outer)
    if around is None or around.drops or around.dim != found.dim:
        return No("the piece is not of a split, or of one along another dimension")
    if not (verdict := _may_merge(graph, inner, found, outer, around)):
        return verdict
    at = _index(found.operand, around)
    sizes = [*around.sizes[:at], *found.sizes, *around.sizes[at + 1 :]]
    merged = rewrite.insert(aten.split_with_sizes, around.operand, sizes, around.dim, before=outer, like=outer)
    for user in list(inner.users):
        rewrite.replace(user, operator.getitem, merged, at + _index(user, found))
    for user in [user for user in outer.users if user is not found.operand]:
        place = _index(user, around)
        shifted = place if place < at else place + len(found.sizes) - 1
        rewrite.replace(user, operator.getitem, merged, shifted)
    return None


def _is_piece(node: Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[0], Node) and tensor_of(node.args[0]) is None


def _may_merge(graph: GraphView, inner: Node, found: Division, outer: Node, around: Division) -> Literal[True] | No:
    if list(found.operand.users) != [inner]:
        return No("the piece is used elsewhere")
    if not all(isinstance(size, int) for size in (*found.sizes, *around.sizes)):
        return No("a size is symbolic")
    users = (*outer.users, *inner.users)
    if not all(_is_piece(user) and isinstance(user.args[1], int) for user in users):
        return No("not every use of the pieces is known")
    if any(user.args[1] == found.operand.args[1] and user is not found.operand for user in outer.users):
        return No("the piece is used elsewhere")
    effects = graph.effects
    return effects.same_region((outer, inner)) and effects.unwritten((around.operand,), outer, inner)


def _index(piece: Node, of: Division) -> int:
    index = piece.args[1]
    assert isinstance(index, int)
    return index % len(of.sizes)


@merge_splits_pass.example
def second_piece(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, ...]:
    a, b = torch.split(x, [3, 5], 1)
    c, d = b.split([2, 3], dim=-1)
    return a.sin(), c.cos(), d * 2


@merge_splits_pass.example
def piece_of_a_piece(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, ...]:
    a, b = torch.chunk(x, 2, 1)
    c, d = torch.chunk(a, 2, 1)
    e, f = torch.split(d, 1, 1)
    return b.sin(), c.cos(), e * 2, f * 3


@merge_splits_pass.refuses("used elsewhere")
def piece_with_another_user(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, ...]:
    a, b = torch.split(x, [3, 5], 1)
    c, d = torch.split(b, [2, 3], 1)
    return a.sin(), b.sum(), c.cos(), d * 2


@merge_splits_pass.refuses("another dimension")
def along_another_dimension(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, ...]:
    a, b = torch.split(x, [3, 5], 1)
    c, d = torch.split(b, 2, 0)
    return a.sin(), c.cos(), d * 2


@merge_splits_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    a, b = torch.split(y, [3, 5], 1)
    y.add_(1)
    c, d = torch.split(b, [2, 3], 1)
    return a.sin(), c.cos(), d * 2
