"""Multiplies transposed operands in their own layout, where they were copied for it."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, Rewriter, known_equal, tensor_of
from eductor.passes.pre_grad.products.compress import insert_expanded, may_be_product
from eductor.passes.pre_grad.products.swaps import swapped
from eductor.pipeline import f32, rule_pass

aten = torch.ops.aten

_COPIES = (aten.contiguous, aten.clone)


@rule_pass(stage="pre_grad", numerics="reassociates", on=False)
def permute_matmul_fusion() -> None:
    """Multiplies transposed operands in their own layout, where they were copied for it.

    It is off by default: matrix libraries accept transposed operands, but are not always as fast with them.

    It pays where the operands are large, and so are their copies.
    """


@permute_matmul_fusion.rule(aten.matmul, aten.bmm, aten.mm)
def copied_operand(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """`a.mT.contiguous() @ b` reads `a` without a copy."""
    bound = graph.bind(node)
    if not isinstance(bound, Bound):
        return
    operands = dict(bound.arguments)
    for name, operand in operands.items():
        view = _copied(graph, operand)
        if view is None:
            continue
        if len(operand.users) > 1:
            rewrite.reject(f"the copy {operand.name} is used elsewhere", node)
        elif not (verdict := graph.effects.may_alias(operand, view)):
            rewrite.reject(verdict, node)
        else:
            operands[name] = view
    if operands != dict(bound.arguments):
        rewrite.replace(node, bound.op, *operands.values())


@permute_matmul_fusion.rule(aten.matmul)
def operand_for_all_samples(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """`a.mT @ w` of a batch and a matrix: one product for each sample; a single one would copy `a`."""
    bound = graph.bind(node)
    if not isinstance(bound, Bound):
        return
    left, right = bound["self"], bound["other"]
    batch, matrix = (left, right) if _rank(right) == 2 else (right, left)
    if _rank(matrix) != 2 or _rank(batch) < 3 or (view := swapped(batch)) is None:
        return
    if len(batch.users) > 1:
        rewrite.reject(f"{batch.name} is used elsewhere", node)
    elif not (verdict := may_be_product(graph, node, (left, right))):
        rewrite.reject(verdict, node)
    else:
        expanded = insert_expanded(rewrite, matrix, view, node)
        rewrite.replace(node, aten.matmul, *((batch, expanded) if batch is left else (expanded, batch)))


def _copied(graph: GraphView, node: Any) -> Node | None:
    """The transposed view that a node is a contiguous copy of."""
    bound = graph.bind(node) if isinstance(node, Node) else None
    if not isinstance(bound, Bound) or bound.packet not in _COPIES:
        return None
    view = bound["self"]
    here, there = tensor_of(node), tensor_of(view)
    if swapped(view) is None or here is None or there is None or known_equal(here.stride(), there.stride()):
        return None
    return view if isinstance(view, Node) else None


def _rank(node: Any) -> int:
    tensor = tensor_of(node)
    return -1 if tensor is None else tensor.dim()


@permute_matmul_fusion.example
def copy_of_a_transposed_operand(a: torch.Tensor = f32(4, 8, 6), b: torch.Tensor = f32(4, 8, 3)) -> torch.Tensor:
    return torch.bmm(a.transpose(1, 2).contiguous(), b)


@permute_matmul_fusion.example
def batch_and_matrix(a: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(8, 3)) -> torch.Tensor:
    return a.permute(0, 2, 1) @ w


@permute_matmul_fusion.refuses("is used elsewhere")
def copy_that_is_used(a: torch.Tensor = f32(4, 8, 6), b: torch.Tensor = f32(4, 8, 3)) -> torch.Tensor:
    copy = a.mT.contiguous()
    return torch.bmm(copy, b) + copy.sum()


@permute_matmul_fusion.refuses("mul_ writes")
def operand_that_is_written(a: torch.Tensor = f32(4, 8, 6), b: torch.Tensor = f32(4, 8, 3)) -> torch.Tensor:
    a = a + 1
    copy = a.mT.contiguous()
    a.mul_(2)
    return torch.bmm(copy, b)
