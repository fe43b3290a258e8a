"""Functional operators with an in-place form, and scatters: what is written replaces the result."""

from __future__ import annotations

import operator
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import Bound, No, difference, tensor_of, value_of
from eductor.passes.post_grad.inplace.safety import Write
from eductor.passes.post_grad.inplace.views import view_of
from eductor.passes.post_grad.inplace.work import Work

aten = torch.ops.aten

INDEXED = (
    *(aten.index_put, aten._unsafe_index_put, aten.index_copy, aten.index_add, aten.index_fill, aten.index_reduce),
    *(aten.scatter, aten.scatter_add, aten.scatter_reduce, aten.masked_scatter, aten.put),
)
"""Operators that write some elements, and copy all others."""
WHOLE = (aten.copy, aten.fill, aten.masked_fill)
"""Operators that may write all elements. Functionalization makes them from assignments."""
CALLED = (
    *(aten.index_copy, aten.index_add, aten.index_fill, aten.index_reduce),
    *(aten.masked_scatter, aten.put, aten.masked_fill),
)
"""Operators without a generated in-place kernel: an engine that fuses decomposes them, or falls back to eager's."""
_RENAMED = {aten._unsafe_index_put: aten.index_put_}


def write_operand(work: Work, node: Node, bound: Bound) -> None:
    """Let a call with one result write `self`."""
    op, operand = _writing(bound.op), bound["self"]
    tensor = tensor_of(operand)
    if op is None or tensor is None:
        return
    if bound.packet in CALLED and work.fuses:
        work.reject("the engine generates no kernel that writes it in place", node)
        return
    if bound.packet in WHOLE and not work.is_stored(operand):
        work.reject("the engine fuses it into its reader", node)
        return
    if work.may_write(Write(node, operand, [node], tensor)):
        args, kwargs = bound.call()
        work.insert(op, *args, before=node, **kwargs)
        work.replace_result(operand, node)


def write_part(work: Work, node: Node, bound: Bound) -> None:
    """Replace a scatter by a copy into the view that it overwrites.

    Functionalization turns an assignment to a view into a chain of scatters, one for each view. Once the innermost view
    is written in place, the others copy a part of a tensor onto itself.
    """
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
    if not work.may_write(Write(node, operand, [node], part, [source] if is_in_place else [])):
        return
    if not is_in_place:
        op, arguments = view_of(bound)
        view = work.insert(op, operand, *arguments, before=node)
        work.insert(aten.copy_.default, view, source, before=node)
    work.replace_result(operand, node)


def write_list(work: Work, node: Node, bound: Bound) -> None:
    """Let a call on a list of tensors write all of them, or none."""
    op, operands = _writing(bound.op), bound.get("self")
    if op is None or not isinstance(operands, (list, tuple)) or not all(isinstance(n, Node) for n in operands):
        return
    picks = [[u for u in node.users if u.target is operator.getitem and u.args[1] == i] for i in range(len(operands))]
    if sum(map(len, picks)) < len(node.users):
        work.reject("its results are not picked one by one", node)
        return
    for i, operand in enumerate(operands):
        shared = next((other for other in operands[:i] if work.places.share(operand, other)), None)
        part, unlike = tensor_of(operand), difference(value_of(node)[i], value_of(operand))
        if shared is not None:
            verdict: Literal[True] | No = No(f"{operand.name} and {shared.name} may share memory", operand, shared)
        elif unlike or part is None:
            verdict = No(f"result {i} differs from its operand: {unlike}", operand)
        else:
            verdict = work.safety.may_write(Write(node, operand, picks[i], part))
        if not verdict:
            work.reject(verdict, node)
            return
    args, kwargs = bound.call()
    work.insert(op, *args, before=node, **kwargs)
    for operand, picked in zip(operands, picks, strict=True):
        for pick in picked:
            work.replace_result(operand, pick)
    work.rewrite.erase(node)


def _writing(op: OpOverload) -> OpOverload | None:
    """The in-place overload with the same arguments."""
    namespace, name = op._schema.name.split("::")
    packet: Any = _RENAMED.get(op.overloadpacket) or getattr(getattr(torch.ops, namespace), f"{name}_", None)
    found: OpOverload | None = getattr(packet, op._overloadname, None)
    return found
