"""Removes splits into one piece: the piece is the tensor itself."""

from __future__ import annotations

import operator

import torch

from eductor.graph import GraphView, Rewriter, difference, value_of
from eductor.graph.effects.gradient_order import same_sum_in_place_of
from eductor.pipeline.base import f32, graph_pass
from eductor.views import SPLITS, division


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
            if piece.target is not operator.getitem:
                rewrite.reject("a use of its piece is not known", split)
                continue
            unlike = difference(value_of(piece), value_of(found.operand))
            verdict = graph.effects.may_alias(piece, found.operand)
            if verdict:
                verdict = same_sum_in_place_of(piece, found.operand, through=split)
            if unlike:
                rewrite.reject(f"the piece differs: {unlike}", piece)
            elif not verdict:
                rewrite.reject(verdict, piece)
            elif not (region := graph.effects.same_region((split, piece))):
                rewrite.reject(region, piece)
            else:
                rewrite.replace(piece, found.operand)


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
