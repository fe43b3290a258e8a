"""Applies functions to tensors one by one, where these are stacked only for the functions and unbound again."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.cost import bytes_of, copy_time, device_of, microseconds
from eductor.graph import Bound, GraphView, No, Rewriter, known_equal, value_of
from eductor.graph.reading.pointwise import on, operand_of
from eductor.pipeline.base import Context, f32, f64, graph_pass
from eductor.views import division

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates")
def merge_stack_tahn_unbind_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Applies functions to tensors one by one, where these are stacked only for the functions and unbound again.

    (The documented name has this spelling.)

    It pays where copying the tensors into a stack costs more than a launch for each.
    """
    for unbind in graph.find(aten.unbind):
        rewrite.record(_apply_one_by_one(graph, rewrite, context, unbind), unbind)


def _apply_one_by_one(graph: GraphView, rewrite: Rewriter, context: Context, unbind: Node) -> No | None:
    functions, stack = _functions(graph, unbind)
    if not functions or not graph.is_call(stack, aten.stack):
        return No("it does not unbind pointwise functions of a stack")
    if not (verdict := _may_rewrite(graph, unbind, functions, stack) and _pays(context, unbind, functions, stack)):
        return verdict
    operands = graph.bound(stack)["tensors"]
    for piece in list(unbind.users):
        value = operands[_index(piece)]
        for function in functions:
            call = graph.bound(function)
            args, kwargs = on(call, value)
            value = rewrite.insert(call.op, *args, before=unbind, like=function, **kwargs)
        rewrite.replace(piece, value)
    return None


def _functions(graph: GraphView, unbind: Node) -> tuple[list[Node], Node]:
    """The pointwise functions between the stack and the unbind, in order, and the operand of the first."""
    found = division(graph, unbind)
    functions: list[Node] = []
    value = found.operand if found is not None else unbind
    while isinstance(bound := graph.bind(value), Bound) and (operand := operand_of(bound)) is not None:
        functions.insert(0, value)
        value = operand
    return functions, value


def _may_rewrite(graph: GraphView, unbind: Node, functions: list[Node], stack: Node) -> Literal[True] | No:
    bound, found = graph.bind(stack), division(graph, unbind)
    if not isinstance(bound, Bound) or not isinstance(bound["tensors"], (list, tuple)) or found is None:
        return No("the operands of the stack are not a list of known tensors")
    if bound["dim"] % value_of(stack).dim() != found.dim:
        return No("the unbind is along another dimension")
    if any(len(node.users) != 1 for node in (stack, *functions)):
        return No("the stack, or a function of it, is used elsewhere")
    if not all(user.target is operator.getitem and isinstance(user.args[1], int) for user in unbind.users):
        return No("not every use of the unbind is known")
    if any(value_of(x).dtype != value_of(stack).dtype for x in bound["tensors"]):
        return No("the stack promotes its operands to one dtype first")
    if any(graph.effects.leaves(user) for user in unbind.users):
        return No("an unbound piece escapes the graph, and shares memory with the others")
    effects = graph.effects
    return (
        effects.same_region((stack, *functions, unbind, *unbind.users))
        and effects.unwritten((*bound["tensors"], *functions, stack), stack, unbind)
        and effects.unwritten(unbind.users, unbind, graph.output)
        and _keeps_layout(graph, unbind, functions, bound["tensors"])
    )


def _keeps_layout(graph: GraphView, unbind: Node, functions: list[Node], operands: Sequence[Any]) -> Literal[True] | No:
    """Whether the functions of the operands have the strides of the pieces of the stack."""
    for piece in unbind.users:
        value = value_of(operands[_index(piece)])
        with value.fake_mode, torch.no_grad():
            for function in functions:
                call = graph.bound(function)
                args, kwargs = on(call, value)
                value = call.op(*args, **kwargs)
        if not known_equal(tuple(value.stride()), tuple(value_of(piece).stride())):
            return No(f"{piece.name} would have other strides", piece)
    return True


def _index(piece: Node) -> int:
    index = piece.args[1]
    assert isinstance(index, int)
    return index


def _pays(context: Context, unbind: Node, functions: list[Node], stack: Node) -> Literal[True] | No:
    device = device_of(value_of(stack).device, context.options)
    saved = copy_time(bytes_of(stack), device)
    spent = (len(unbind.users) - 1) * len(functions) * device.launch
    if saved > spent:
        return True
    return No(f"it does not pay: the stack costs {microseconds(saved)}, more launches {microseconds(spent)}")


@merge_stack_tahn_unbind_pass.example
def tanh_of_two(x: torch.Tensor = f32(256, 256), y: torch.Tensor = f32(256, 256)) -> torch.Tensor:
    a, b = torch.unbind(torch.tanh(torch.stack([x, y])), 0)
    return a * b


@merge_stack_tahn_unbind_pass.example
def pieces_of_a_split(x: torch.Tensor = f32(128, 1024)) -> torch.Tensor:
    a, b, c, d = torch.split(x, 256, 1)
    p, q, r = torch.stack([a, b, c]).tanh().mul(2).unbind(0)
    return p * q + r * d


@merge_stack_tahn_unbind_pass.refuses("it does not pay")
def many_small_ones(x: torch.Tensor = f32(8, 4)) -> torch.Tensor:
    parts = [x + i for i in range(8)]
    return sum(torch.stack(parts).tanh().unbind(0), x)


@merge_stack_tahn_unbind_pass.refuses("used elsewhere")
def stack_with_another_user(x: torch.Tensor = f32(256, 256), y: torch.Tensor = f32(256, 256)) -> torch.Tensor:
    both = torch.stack([x, y])
    a, b = both.tanh().unbind(0)
    return a * b + both.sum()


@merge_stack_tahn_unbind_pass.refuses("one dtype first")
def mixed_dtypes(x: torch.Tensor = f32(256, 256), y: torch.Tensor = f64(256, 256)) -> torch.Tensor:
    a, b = torch.stack([x, y]).tanh().unbind(0)
    return a * b


@merge_stack_tahn_unbind_pass.refuses("another dimension")
def along_another_dimension(x: torch.Tensor = f32(256, 2), y: torch.Tensor = f32(256, 2)) -> torch.Tensor:
    a, b = torch.stack([x, y], 2).tanh().unbind(1)
    return a * b


@merge_stack_tahn_unbind_pass.refuses("escapes the graph")
def returned(x: torch.Tensor = f32(256, 256), y: torch.Tensor = f32(256, 256)) -> tuple[torch.Tensor, ...]:
    return torch.stack([x, y]).tanh().unbind(0)
