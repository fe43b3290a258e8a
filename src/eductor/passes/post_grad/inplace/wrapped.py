"""Unwraps mutable operators and Triton kernels: they write operands where that is safe, else copies."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch.fx import Node

from eductor.compat import HigherOrderOperator, OpOverload
from eductor.graph import No, Rewriter, known_equal, tensor_of
from eductor.graph.wrappers.auto_functionalized import (
    functional_call,
    functional_call_on_bases,
    functional_kernel,
    written_by,
)
from eductor.graph.wrappers.copies import Writable, writable
from eductor.passes.post_grad.inplace.safety import Write
from eductor.passes.post_grad.inplace.work import Work

Written = Mapping[Any, Any]
"""The operands that a wrapped call writes, by the key under which its users pick the new value."""


def is_wrapper(operator: Any) -> bool:
    """Whether an operator wraps calls of mutable operators or kernels."""
    return isinstance(operator, HigherOrderOperator) and operator.name() in _WRAPPERS


def call_in_place(work: Work, node: Node) -> None:
    """Unwrap a call that may write some of its operands; otherwise leave the wrapper to the engine."""
    assert isinstance(node.target, HigherOrderOperator)
    written_of, decompose = _WRAPPERS[node.target.name()]
    written = written_of(node)
    if isinstance(written, No):
        work.reject(written, node)
        return
    if any(user.target is not operator.getitem for user in node.users):
        work.reject("its results are not picked one by one", node)
        return
    allowed: set[Node] = set()
    for key, operand in written.items():
        picks = [user for user in node.users if user.args[1] == key]
        if verdict := _may_write(work, node, operand, picks, allowed):
            allowed.add(operand)
        else:
            work.reject(verdict, node)
    if not allowed:
        return
    made = node.prev

    def in_place_or_copied(rewrite: Rewriter, value: Node, call: Node) -> Node:
        return value if value in allowed else writable(rewrite, value, call)

    for key, operand in written.items():
        for pick in (user for user in node.users if user.args[1] == key and operand in allowed):
            work.places.replace_result(operand, pick)
    decompose(work.rewrite, node, in_place_or_copied)
    while (made := made.next) not in work.places:
        work.enter(made)
    for operand in allowed:  # a kernel has no schema that names what it writes
        work.places.mark_written(operand)


def _may_write(work: Work, node: Node, operand: Any, picks: list[Node], allowed: set[Node]) -> Literal[True] | No:
    part = tensor_of(operand)
    if not isinstance(operand, Node) or part is None:
        return No("it writes a value that is not a single tensor")
    shared = next((other for other in allowed if work.places.share(operand, other)), None)
    if shared is not None:
        return No(f"{operand.name} and {shared.name} may share memory", operand, shared)
    if any(key.endswith("storage_offset") for key in node.kwargs) and not known_equal(part.storage_offset(), 0):
        return No(f"it writes a part of {operand.name} that is given by its storage offset", operand)
    return work.safety.may_write(Write(node, operand, picks, part))


def _written_by_operator(node: Node) -> Written | No:
    """What follows the results of the operator: the arguments that it writes, or the bases that they are views of."""
    op = node.args[0]
    if not isinstance(op, OpOverload) or any(r.alias_info is not None for r in op._schema.returns):
        return No("it wraps an operator that may return what it writes")
    bases: Any = node.kwargs.get("_all_bases", [node.kwargs.get(name) for name in written_by(op._schema)])
    first = max(len(op._schema.returns), 1)
    return (
        {first + i: base for i, base in enumerate(bases) if base is not None} if bases else No("it writes new memory")
    )


def _written_by_kernel(node: Node) -> Written | No:
    given: Any = node.kwargs["kwargs"]
    names: Any = node.kwargs["tensors_to_clone"]
    return {name: given[name] for name in given if name in names}


_WRAPPERS: dict[str, tuple[Callable[[Node], Written | No], Callable[[Rewriter, Node, Writable], None]]] = {
    "auto_functionalized": (_written_by_operator, functional_call),
    "auto_functionalized_v2": (_written_by_operator, functional_call_on_bases),
    "triton_kernel_wrapper_functional": (_written_by_kernel, functional_kernel),
}
