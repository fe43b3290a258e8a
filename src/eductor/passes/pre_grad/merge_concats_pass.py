"""Flattens a cat whose operand is a cat along the same dimension."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import GraphView, No, Rewriter, tensor_of, value_of
from eductor.graph.effects.gradient_order import another_order, may_be_used_elsewhere, same_sum, uses
from eductor.pipeline.base import f32, f64, graph_pass

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def merge_concats_pass(graph: GraphView, rewrite: Rewriter, *, most_operands: int = 512) -> None:
    """Flattens a cat whose operand is a cat along the same dimension.

    `most_operands` is how many operands the result may have: code for very wide cats is slow to generate.

    It pays always: the operands of the inner cat are copied once, not twice.
    """
    for outer in graph.find(aten.cat):
        operands = _operands(graph, outer)
        if operands is None:
            rewrite.reject("its operands are not a list of known tensors", outer)
            continue
        flat: list[Node] = []
        for operand in operands:
            inner = _operands(graph, operand)
            verdict = _may_merge(graph, outer, operand, inner) if inner is not None else No("no operand is a cat")
            if inner is not None and verdict and len(operands) + len(inner) > most_operands:
                verdict = No(f"the cat would have more than {most_operands} operands")
            if not verdict:
                rewrite.reject(verdict, operand)
            flat += inner if verdict and inner is not None else [operand]
        if len(flat) > len(operands):
            rewrite.replace(outer, aten.cat, flat, dim=_dim(graph, outer))


def _operands(graph: GraphView, node: Node) -> list[Node] | None:
    """The operands of a cat of known tensors; None for anything else."""
    bound = graph.call(node, aten.cat)
    given: Any = bound["tensors"] if bound is not None else None
    is_list = isinstance(given, (list, tuple)) and all(tensor_of(x) is not None for x in given)
    return list(given) if is_list and tensor_of(node) is not None and isinstance(_dim(graph, node), int) else None


def _dim(graph: GraphView, node: Node) -> Any:
    dim = graph.bound(node)["dim"]
    return dim % value_of(node).dim() if isinstance(dim, int) else None


def _may_merge(graph: GraphView, outer: Node, inner: Node, operands: list[Node]) -> Literal[True] | No:
    """Whether an inner cat may be removed: it copies its operands when it runs, and must stay if it has other users."""
    if list(inner.users) != [outer]:
        return No("the inner cat is used elsewhere")
    if _dim(graph, inner) != _dim(graph, outer):
        return No("the inner cat is along another dimension")
    whole = value_of(outer)
    if any(value_of(x).dtype != whole.dtype or value_of(x).dim() != whole.dim() for x in (inner, *operands)):
        return No("the operands differ in dtype or rank")
    effects = graph.effects
    verdict = effects.same_region((inner, outer)) and effects.unwritten((inner, *operands), inner, outer)
    return verdict and next((v for x in {*operands} if not (v := _same_sum(x, inner, outer, operands))), True)


def _same_sum(operand: Node, inner: Node, outer: Node, operands: list[Node]) -> Literal[True] | No:
    """Whether an operand of the inner cat gets the same gradient from the outer one."""
    parts, others, copies = operands.count(operand), uses(operand, but=(inner,)), len(uses(inner))
    if copies > 1 and copies * parts + len(others) + may_be_used_elsewhere(operand) > 2:
        return another_order(operand)
    return same_sum(operand, others, inner, outer, parts)


@merge_concats_pass.example
def nested(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3), c: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat([torch.cat([a, b], 1), c], -1)


@merge_concats_pass.example
def three_deep(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat([a, torch.cat([b, torch.cat([a, b])])])


@merge_concats_pass.refuses("used elsewhere")
def inner_with_another_user(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    inner = torch.cat([a, b], 1)
    return torch.cat([inner, a], 1) + inner.sum()


@merge_concats_pass.refuses("another dimension")
def another_dimension(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat([torch.cat([a, b], 0), torch.cat([a, b], 0)], 1)


@merge_concats_pass.refuses("may write")
def operand_written_between(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    c = a.sin()
    inner = torch.cat([c, b], 1)
    c.zero_()
    return torch.cat([inner, c], 1)


@merge_concats_pass.refuses("differ in dtype")
def mixed_dtypes(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f64(2, 3)) -> torch.Tensor:
    return torch.cat([torch.cat([a, b], 1), a], 1)


@merge_concats_pass.refuses("a barrier separates")
def inner_without_gradient(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    with torch.no_grad():
        inner = torch.cat([a, b], 1)
    return torch.cat([inner, a], 1)
