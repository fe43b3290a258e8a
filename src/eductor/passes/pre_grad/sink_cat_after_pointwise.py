"""Applies an elementwise function to the operands of a cat, not to its result, where it fuses with their kernels."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.cost import device_of
from eductor.graph import Bound, GraphView, No, Rewriter, difference, is_row_major, requires_grad, tensor_of, value_of
from eductor.graph.reading.pointwise import on, operand_of
from eductor.graph.values.meta import fake_mode_of
from eductor.passes.functional.layout_safety import RESHAPES, may_be_view
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten

_FUSIBLE = {
    *(aten.sum, aten.mean, aten.amax, aten.amin, aten.softmax, aten.log_softmax, aten.layer_norm, aten.rms_norm),
}
"""Operators that are not elementwise, but that an engine fuses with elementwise functions."""


@graph_pass(stage="pre_grad", numerics="reassociates")
def sink_cat_after_pointwise(graph: GraphView, rewrite: Rewriter, context: Context, *, max_operands: int = 32) -> None:
    """Applies an elementwise function to the operands of a cat, not to its result, where it fuses with their kernels.

    It pays where the engine generates the kernels of the operands: the function fuses with them, and the result of the
    cat is not read and written once more. Operands that are inputs, or come from a matrix product, stay, and so do cats
    of more than `max_operands`.

    Not exact: ATen computes most of a tensor in vectors and its last elements one by one, which round differently in
    `sigmoid`, and the operands end at other elements than the whole.
    """
    for cat in graph.find(aten.cat):
        views, users = _down(graph, cat)
        functions = [graph.bind(user) for user in users]
        if not any(isinstance(f, Bound) and operand_of(f) is not None for f in functions):
            continue
        if len(users) > 1:
            rewrite.reject("the result of the cat is used more than once", cat, *users)
            continue
        bound, user, function = graph.bind(cat), users[0], graph.bound(users[0])
        if not isinstance(bound, Bound):
            rewrite.reject(bound, cat, user)
            continue
        verdict = _may_sink(graph, cat, bound, views, user, function) and _pays(graph, bound, max_operands, context)
        if not verdict:
            rewrite.reject(verdict, cat, user)
            continue
        done = {
            operand: rewrite.insert(function.op, *args, before=cat, like=user, **kwargs)
            for operand in dict.fromkeys(bound["tensors"])
            for args, kwargs in [on(function, operand)]
        }
        joined = rewrite.replace(cat, aten.cat, [done[n] for n in bound["tensors"]], bound["dim"])
        rewrite.replace(user, views[-1] if views else joined)


def _down(graph: GraphView, cat: Node) -> tuple[list[Node], list[Node]]:
    """The views that the result of a cat goes through, each used once, and the users of the last one."""
    views: list[Node] = []
    users = list(cat.users)
    while len(users) == 1 and graph.is_call(users[0], *RESHAPES):
        views.append(users[0])
        users = list(users[0].users)
    return views, users


def _may_sink(
    graph: GraphView, cat: Node, bound: Bound, views: list[Node], user: Node, function: Bound
) -> Literal[True] | No:
    operands, value = bound["tensors"], tensor_of(cat)
    if not isinstance(operands, (list, tuple)) or not all(tensor_of(n) is not None for n in operands) or value is None:
        return No("the operands of the cat are not a list of known tensors")
    if any(tensor_of(n).dtype != value.dtype for n in operands):  # type: ignore[union-attr]
        return No("the cat promotes its operands to one dtype first")
    if len(set(operands)) < len(operands) and requires_grad(value):
        return No("an operand occurs twice, and its gradients would be added before they are multiplied")
    verdict = graph.effects.same_region([cat, user]) and (may_be_view(graph, user) if views else True)
    return verdict and _keeps_layout(graph, bound, value, function)


def _keeps_layout(graph: GraphView, bound: Bound, value: torch.Tensor, function: Bound) -> Literal[True] | No:
    """Whether the result of the cat keeps its layout: the function may change the strides of the operands."""
    if is_row_major(value) and all(is_row_major(value_of(n)) for n in bound["tensors"]):
        return True
    mode = fake_mode_of(graph.graph)
    if mode is None:
        return No("the layout of the result is not known")

    def run(operand: Any) -> Any:
        args, kwargs = on(function, operand)
        return function.op(*args, **kwargs)

    with mode, torch.no_grad():
        whole = run(value)
        parts = torch.cat([run(value_of(n)) for n in bound["tensors"]], bound["dim"])
    unlike = difference(whole, parts) or (None if whole.stride() == value.stride() else "strides")
    return No(f"the result would differ: {unlike}") if unlike else True


def _pays(graph: GraphView, bound: Bound, max_operands: int, context: Context) -> Literal[True] | No:
    operands = dict.fromkeys(bound["tensors"])
    if not device_of(value_of(bound["tensors"][0]).device, context.options).fuses:
        return No("it does not pay: the engine does not fuse elementwise calls")
    if len(operands) > max_operands:
        return No(f"it does not pay: the function would be computed on {len(operands)} operands")
    for operand in operands:
        made = graph.bind(operand)
        if not isinstance(made, Bound) or not (torch.Tag.pointwise in made.op.tags or made.packet in _FUSIBLE):
            return No(
                f"it does not pay: {operand.name} is not computed by a kernel that could fuse the function", operand
            )
        if len(operand.users) > 1:
            return No(f"it does not pay: {operand.name} has other users, which need it without the function", operand)
    return True


@sink_cat_after_pointwise.example
def relu_of_a_cat(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    return torch.relu(torch.cat([a.sin(), b.cos()], 1))


@sink_cat_after_pointwise.example
def scaled_view_of_a_cat(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    joined = torch.cat([a.exp(), b + 1], dim=-1)
    return (joined.view(4, 3) * 0.5).sum(0)


@sink_cat_after_pointwise.refuses("is not computed by a kernel")
def tanh_of_a_cat_of_inputs(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.tanh(torch.cat([a, b]))


@sink_cat_after_pointwise.refuses("to one dtype first")
def tanh_of_mixed_dtypes(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.tanh(torch.cat([a.sin(), b.double().cos()]))


@sink_cat_after_pointwise.refuses("used more than once")
def cat_that_is_used_elsewhere(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    joined = torch.cat([a.sin(), b.cos()])
    return torch.relu(joined) + joined
