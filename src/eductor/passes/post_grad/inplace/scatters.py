"""A tensor with other contents in a part of it: the part is written, and the tensor stands for the result.

Functionalization spells an assignment to a view so, once for each view on the way. What writes the innermost view in
place leaves scatters that put a part of a tensor where it is.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph.reading.bind import Bound
from eductor.graph.values.meta import difference, value_of
from eductor.passes.post_grad.inplace.safety import Write
from eductor.passes.post_grad.inplace.views import view_of
from eductor.passes.post_grad.inplace.work import Work

aten = torch.ops.aten


def write_part(work: Work, node: Node, bound: Bound) -> None:
    """A scatter copies into the part that it scatters over."""
    operand, source, part = bound["self"], bound["src"], work.parts.of(node)
    if part is None:
        work.reject("which part it writes is known only when it runs", node)
        return
    if not isinstance(source, Node):
        return
    is_in_place = work.places.root(source) == work.places.root(operand) and difference(value_of(source), part) is None
    if is_in_place and not work.places.is_written(operand):
        # Then it is the program's own copy of something to where it is, of which the version of an input tells.
        work.reject(f"{source.name} is where it is put, and nothing was written there", node)
        return
    if not is_in_place and not work.is_stored(operand):
        work.reject("the engine computes it inside of the kernel that reads it", node)
        return
    verdict = work.safety.may_write(Write(node, operand, [node], part, [source] if is_in_place else []))
    if not verdict:
        work.reject(verdict, node)
        return
    if not is_in_place:
        op, arguments = view_of(bound)
        view = work.insert(op, operand, *arguments, before=node)
        work.insert(aten.copy_.default, view, source, before=node)
    work.stand_for(operand, node)
