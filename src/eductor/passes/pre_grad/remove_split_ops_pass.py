"""Removes splits of which one piece is used, or whose pieces go through the same functions and are concatenated again."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, known_equal, requires_grad, value_of
from eductor.graph.reading.pointwise import is_same_function, on, operand_of
from eductor.passes.functional.layout_safety import may_be_view
from eductor.pipeline.base import f32, graph_pass
from eductor.views import SPLITS, concatenated, division

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates")
def remove_split_ops_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Removes splits of which one piece is used, or whose pieces go through the same functions and are concatenated again.

    It pays where the pieces are many: a function is computed once, not piece by piece, and nothing is concatenated.
    """
    for cat in graph.find(aten.cat):
        rewrite.record(_apply_once(graph, rewrite, cat), cat)
    for split in graph.find(*SPLITS):
        rewrite.record(_narrow(graph, rewrite, split), split)


def _apply_once(graph: GraphView, rewrite: Rewriter, cat: Node) -> No | None:
    """Applies pointwise functions once to the whole, where each piece of a cat goes through the same functions."""
    bound = graph.bind(cat)
    operands = bound["tensors"] if isinstance(bound, Bound) else ()
    if not isinstance(bound, Bound) or not isinstance(operands, (list, tuple)) or len(set(operands)) < 2:
        return No("its operands are not a list of different tensors")
    levels, ends = _common(graph, operands)
    if not levels:
        return No("its operands do not end in the same pointwise functions, used once")
    found = concatenated(graph, ends, bound["dim"], before=cat)
    if not (verdict := graph.effects.same_region((cat, *(node for level in levels for node in level)))):
        return verdict
    if found is None or not found.is_view:
        return No("the operands of the functions are not together one view of one tensor")
    value = found.emit(rewrite, before=cat, like=cat)
    for level in reversed(levels):
        function = graph.bound(level[0])
        args, kwargs = on(function, value)
        value = rewrite.insert(function.op, *args, before=cat, like=level[0], **kwargs)
    is_saved = requires_grad(value_of(cat)) and not may_be_view(graph, cat)  # some functions save their result
    if is_saved or not known_equal(tuple(value_of(value).stride()), tuple(value_of(cat).stride())):
        value = rewrite.insert(aten.clone, value, before=cat, like=cat, memory_format=torch.contiguous_format)
    rewrite.replace(cat, value)
    return None


def _common(graph: GraphView, operands: Sequence[Node]) -> tuple[list[list[Node]], list[Node]]:
    """The pointwise functions that all operands end in, last first, and the values that they are applied to."""
    levels: list[list[Node]] = []
    ends = list(operands)
    while True:
        bounds = [graph.bind(node) for node in ends]
        inner = [operand_of(bound) if isinstance(bound, Bound) else None for bound in bounds]
        same = all(isinstance(b, Bound) and is_same_function(bounds[0], b) for b in bounds)  # type: ignore[arg-type]
        if not same or any(len(node.users) != 1 for node in ends) or len(set(ends)) < len(ends):
            return levels, ends
        known = [node for node in inner if node is not None]
        if len(known) < len(ends):
            return levels, ends
        levels.append(ends)
        ends = known


def _narrow(graph: GraphView, rewrite: Rewriter, split: Node) -> No | None:
    """Replaces a split of which one piece is used by a slice. With more pieces, the split has the cheaper gradient."""
    found = division(graph, split)
    pieces = list(split.users)
    if found is None or len(pieces) != 1 or len(found.sizes) < 2 or pieces[0].target is not operator.getitem:
        return No("more than one of its pieces is used")
    (piece,), index = pieces, pieces[0].args[1]
    if not isinstance(index, int) or not all(isinstance(size, int) for size in found.sizes):
        return No("the start or the size of the piece is symbolic")
    if not (verdict := graph.effects.same_region((split, piece))):
        return verdict
    rewrite.replace(piece, aten.narrow, found.operand, found.dim, found.starts[index], found.sizes[index])
    return None


@remove_split_ops_pass.example
def one_function_on_every_piece(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, [3, 5], 1)
    return torch.cat([torch.relu(a * 2), torch.relu(b * 2)], 1)


@remove_split_ops_pass.example
def one_piece_is_used(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return x.chunk(4, dim=-1)[2].sin()


@remove_split_ops_pass.refuses("do not end in the same pointwise functions")
def different_functions(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.cat([torch.relu(a), torch.tanh(b)], 1)


@remove_split_ops_pass.refuses("do not end in the same pointwise functions")
def a_function_of_the_whole_piece(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.cat([a.softmax(1), b.softmax(1)], 1)


@remove_split_ops_pass.refuses("are not together one view of one tensor")
def another_order(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.cat([b.relu(), a.relu()], 1)


@remove_split_ops_pass.refuses("are not together one view of one tensor")
def written_between(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    y = x.sin()
    a, b = torch.split(y, 4, 1)
    c = a.relu()
    y.add_(1)
    return torch.cat([c, b.relu()], 1)


@remove_split_ops_pass.refuses("more than one of its pieces")
def two_pieces_are_used(x: torch.Tensor = f32(4, 9)) -> torch.Tensor:
    a, _, c = torch.split(x, 3, 1)
    return a.sin() + c
