"""Scatters in place: the view that a scatter overwrites is written, and the tensor replaces the result.

Functionalization turns an assignment to a view into a chain of scatters, one for each view. Once the innermost view is
written in place, the others copy a part of a tensor onto itself.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph import Bound, difference, value_of
from eductor.passes.post_grad.inplace.safety import Write
from eductor.passes.post_grad.inplace.views import view_of
from eductor.passes.post_grad.inplace.work import Work

aten = torch.ops.aten


def write_part(work: Work, node: Node, bound: Bound) -> None:
    """Replace a scatter by a copy into the view that it overwrites."""
    operand, source, part = bound["self"], bound["src"], work.parts.of(node)
    if part is None:
        work.reject("the part that it writes depends on data", node)
        return
    if not isinstance(source, Node):
        return
    is_in_place = work.places.root(source) == work.places.root(operand) and difference(value_of(source), part) is None
    if is_in_place and not work.places.is_written(operand):
        # Then the program itself copies a part onto itself, which increments the version of an input.
        work.reject(f"it copies {source.name} onto itself, and nothing was written there", node)
        return
    if not is_in_place and not work.is_stored(operand):
        work.reject("the engine fuses it into its reader", node)
        return
    verdict = work.safety.may_write(Write(node, operand, [node], part, [source] if is_in_place else []))
    if not verdict:
        work.reject(verdict, node)
        return
    if not is_in_place:
        op, arguments = view_of(bound)
        view = work.insert(op, operand, *arguments, before=node)
        work.insert(aten.copy_.default, view, source, before=node)
    work.replace_result(operand, node)
