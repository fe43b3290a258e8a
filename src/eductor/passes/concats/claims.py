"""Which pass fuses which concats of views: one table, a row for each documented name.

All of them read a cat or stack as a nest of views and merge the operands that are neighbours in one tensor. A row
declares the calls that a pass reads, the nests that it claims, and what it calls them in its reasons. Where several
passes claim one nest, the first in the order of the stage fuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from eductor.graph import GraphView, No, Rewriter
from eductor.graph.core_rewriter import in_core_operators
from eductor.pipeline.base import Context, Contract, Pass, Stage
from eductor.views import ConcatNest, concat_nest, fuse_concat

aten = torch.ops.aten


class ConcatPass(Pass):
    """A pass that fuses the concat nests, among calls of `roots`, that its function claims; `what` names these nests."""

    def __init__(
        self, claims: Callable[[ConcatNest], bool], roots: tuple[Any, ...], what: str, **declared: Any
    ) -> None:
        super().__init__(claims, contract=Contract("exact"), **declared)
        self.roots = roots
        self.what = what

    def _check_function(self) -> None:
        """The function takes a nest, not the graph and the rewriter."""

    def run(self, view: GraphView, rewriter: Rewriter, context: Context) -> None:
        into = in_core_operators(rewriter) if context.stage == "post_grad" else rewriter
        for root in view.find(*self.roots):
            nest = concat_nest(view, root)
            if isinstance(nest, No):
                rewriter.reject(nest, root)
            elif not self.fn(nest):
                rewriter.reject(f"it is not {self.what}", root)
            else:
                fuse_concat(view, into, nest, context)


def _row(stage: Stage, *roots: Any, what: str, on: bool = True) -> Callable[[Callable[[ConcatNest], bool]], ConcatPass]:
    return lambda claims: ConcatPass(claims, roots, what, stages=(stage,), on=on)


# ------------------------------------------------------------------------------------- pieces as they are, transposed


@_row("pre_grad", aten.cat, what="a cat of all pieces of one tensor")
def split_cat_pass(nest: ConcatNest) -> bool:
    """Replaces a cat of all pieces of one tensor by a view, along any dimension.

    It pays always: a copy becomes a view, or is removed; where the order of pieces changes, one copy stays.
    """
    return nest.is_one and nest.kinds <= {"split", "permute"} and (nest.is_whole or not nest.is_slice)


@_row("pre_grad", aten.cat, what="a cat of neighbouring pieces that it alone uses")
def merge_getitem_cat_pass(nest: ConcatNest) -> bool:
    """Replaces neighbouring pieces that only a cat uses by one slice.

    It pays always: the pieces become one slice, copied only where the result must own its memory.
    """
    alone = all(len(x.users) == 1 for run in nest.runs for x in run.operands)
    return nest.is_slice and nest.kinds == {"split"} and alone


@_row("pre_grad", aten.cat, what="a cat of neighbouring pieces of one tensor")
def mutate_cat_pass(nest: ConcatNest) -> bool:
    """Replaces a cat of neighbouring pieces that have other users by one slice.

    It pays always: a copy becomes a slice, or is made from one; the pieces stay for their other users.
    """
    return nest.is_slice and nest.kinds == {"split"}


@_row("pre_grad", aten.cat, what="a cat of pieces and other operands")
def split_cat_to_slices_pass(nest: ConcatNest) -> bool:
    """Replaces each run of neighbouring pieces among the operands of a cat by one slice.

    It pays where a cat has many pieces: it stays a copy, but of few operands.
    """
    return not nest.is_one and nest.kinds.isdisjoint({"squeeze", "unsqueeze", "unbind"})


@_row("pre_grad", aten.stack, what="a stack of pieces of one tensor")
def split_stack_to_cats_pass(nest: ConcatNest) -> bool:
    """Replaces a stack of equal pieces of one tensor by a reshape.

    It pays always: a call for each piece and a copy become a view and one copy at most.
    """
    return nest.is_one and nest.kinds <= {"split", "permute"}


@_row("post_grad", aten.cat, what="a cat of pieces of one tensor", on=False)
def split_cat_aten_pass(nest: ConcatNest) -> bool:
    """Replaces a cat of pieces of one tensor by a slice or a permutation.

    It pays where models concatenate what they split by hand: a copy becomes a view. The passes before autograd fuse
    most of these.
    """
    return nest.is_one and nest.kinds <= {"split", "permute"}


# --------------------------------------------------------------------------------- pieces that are reshaped or squeezed


@_row("pre_grad", aten.cat, what="a cat of reshaped chunks of one tensor")
def fuse_chunk_reshape_concat_pass(nest: ConcatNest) -> bool:
    """Replaces chunks that are reshaped and concatenated by one reshape.

    It pays always: a copy, and a call for each chunk, become a view, or one copy where the result must own its memory.
    """
    return nest.is_one and "reshape" in nest.kinds and nest.kinds.isdisjoint({"squeeze", "unsqueeze", "unbind"})


@_row("pre_grad", aten.cat, what="a cat of squeezed chunks of one tensor")
def fuse_chunk_squeeze_cat_pass(nest: ConcatNest) -> bool:
    """Replaces slices of size one that are squeezed and concatenated by one view.

    It pays always: a copy, and two calls for each slice, become a view, or one copy where the result must own its
    memory.
    """
    return nest.is_one and "squeeze" in nest.kinds and nest.kinds.isdisjoint({"unsqueeze", "unbind"})


@_row("pre_grad", aten.cat, what="a cat of unsqueezed parts of one tensor")
def fuse_chunk_reshape_unsqueeze_concat_pass(nest: ConcatNest) -> bool:
    """Replaces chunks that are reshaped, unsqueezed and concatenated by one reshape.

    It pays always: a copy, and two calls for each chunk, become a view, or one copy where the result must own its
    memory.
    """
    return nest.is_one and "unsqueeze" in nest.kinds


@_row("pre_grad", aten.cat, aten.stack, what="a cat with squeezed chunks of one tensor", on=False)
def fuse_split_getitem_squeeze_cat(nest: ConcatNest) -> bool:
    """Merges neighbouring squeezed slices in a cat or stack, between other operands too.

    It pays where such runs are left, which is seldom: the passes before it fuse most of them, so it is off by default.
    """
    return "squeeze" in nest.kinds


@_row("pre_grad", aten.stack, what="a stack of reshaped pieces of one tensor")
def move_reshape_out_of_split_stack_pass(nest: ConcatNest) -> bool:
    """Replaces reshapes of the pieces in a stack by one reshape of their tensor.

    It pays where the pieces are many: one reshape instead of one for each piece, and a stack of fewer operands.
    """
    return "reshape" in nest.kinds and "unbind" not in nest.kinds


@_row("post_grad", aten.cat, what="a cat of reshaped pieces of one tensor", on=False)
def move_view_after_cat_aten_pass(nest: ConcatNest) -> bool:
    """Replaces a cat of reshaped pieces of one tensor by one permutation and one reshape.

    It pays where the pieces are many: one reshape instead of one for each piece.
    """
    return nest.is_one and "reshape" in nest.kinds


# ------------------------------------------------------------------------------------ what was unbound, rows and columns


@_row("pre_grad", aten.cat, what="a cat of what was unbound from one tensor")
def unbind_cat_to_view_pass(nest: ConcatNest) -> bool:
    """Replaces a cat of unbound parts of one tensor by a permutation and a reshape.

    It pays always: a call for each part and a copy become a view and one copy at most.
    """
    return "unbind" in nest.kinds and "unsqueeze" not in nest.kinds


@_row("pre_grad", aten.stack, what="a stack of what was unbound from one tensor")
def unbind_stack_pass(nest: ConcatNest) -> bool:
    """Replaces a stack of all or some unbound parts of one tensor by a permutation.

    It pays always: a copy, and a call for each part, become a view, or one copy where the result must own its memory.
    """
    return nest.is_one and not nest.kinds.isdisjoint({"unbind", "squeeze"})


@_row("pre_grad", aten.stack, what="a stack of unbound and other operands")
def unbind_stack_to_slices_pass(nest: ConcatNest) -> bool:
    """Replaces each run of unbound parts among the operands of a stack by one slice.

    It pays where a stack has many operands: it stays a copy, but of few.
    """
    few_others = sum(run.plan is None for run in nest.runs) <= sum(len(run.operands) for run in nest.merged)
    return not nest.is_one and "unbind" in nest.kinds and few_others


@_row("post_grad", aten.cat, what="a cat of what was selected from one tensor", on=False)
def select_cat_aten_pass(nest: ConcatNest) -> bool:
    """Replaces a cat of rows or columns selected from one tensor by a permutation and a reshape.

    It pays where they are selected one by one: a call for each and a copy become a view and one copy at most.
    """
    return nest.is_one and "unbind" in nest.kinds and "unsqueeze" not in nest.kinds


@_row("post_grad", aten.stack, aten.cat, what="a stack of what was unbound from one tensor", on=False)
def unbind_stack_aten_pass(nest: ConcatNest) -> bool:
    """Replaces a stack of unbound parts of one tensor by a view.

    It pays where all unbound parts are stacked again: a copy becomes a view.
    """
    return nest.is_one and "unbind" in nest.kinds and (nest.is_stack or "unsqueeze" in nest.kinds)
