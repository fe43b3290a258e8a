"""Products with transposed operands or results, in an order that needs no transposed copy."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, known_equal, requires_grad, tensor_of, value_of
from eductor.passes.pre_grad.compressions import (
    SWAPS,
    are_of_one_kind,
    have_no_other_users,
    insert_expanded,
    insert_product,
    may_be_product,
    rank_of,
    swapped,
    undisturbed,
)
from eductor.pipeline import f32, graph_pass, rule_pass

aten = torch.ops.aten

_COPIES = (aten.contiguous, aten.clone)


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def linear_permute_fusion(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a transposed linear by a product with the weight on the left, which needs no transpose.

    It is off by default: a product for each sample is slower than one for all, and its gradient of the weight is summed
    over samples.

    It pays only where a user would copy the transposed result.
    """
    for node in graph.find(*SWAPS):
        linear = swapped(node)
        if linear is not None and graph.is_call(linear, aten.linear):
            rewrite.record(_replace_transposed_result(graph, rewrite, node, linear), node)


def _replace_transposed_result(graph: GraphView, rewrite: Rewriter, node: Node, linear: Node) -> No | None:
    bound = graph.bind(linear)
    if not isinstance(bound, Bound):
        return bound
    x, weight, bias = bound["input"], bound["weight"], bound["bias"]
    tensor, matrix = tensor_of(x), tensor_of(weight)
    operands = [n for n in (x, weight, bias) if n is not None]
    if tensor is None or tensor.dim() < 2 or matrix is None or matrix.dim() != 2:
        return No("its input or its weight is not a matrix")
    verdict = (
        are_of_one_kind(*operands, linear)
        and have_no_other_users((linear, node))
        and undisturbed(graph, linear, node, operands)
        and may_be_product(graph, node, operands)
    )
    if not verdict:
        return verdict
    transposed = swapped(x)
    if transposed is None or requires_grad(value_of(transposed)) != requires_grad(value_of(x)):
        transposed = rewrite.insert(aten.transpose.int, x, -2, -1, before=linear)
    rewrite.replace(node, insert_product(rewrite, weight, transposed, bias, before=node))
    return None


@linear_permute_fusion.example
def transposed_result(
    x: torch.Tensor = f32(4, 6, 8), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    return F.linear(x, w, b).permute(0, 2, 1).flatten(1)


@linear_permute_fusion.example
def matrices(x: torch.Tensor = f32(6, 8), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x, w).t().contiguous()


@linear_permute_fusion.refuses("also used by")
def linear_that_is_used(x: torch.Tensor = f32(4, 6, 8), w: torch.Tensor = f32(3, 8)) -> tuple[torch.Tensor, ...]:
    rows = F.linear(x, w)
    return rows.mT.flatten(1), rows.sum()


@linear_permute_fusion.refuses("observable outside")
def transposed_result_that_is_returned(x: torch.Tensor = f32(4, 6, 8), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x, w).transpose(-1, -2)


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def permute_linear_fusion(graph: GraphView, rewrite: Rewriter) -> None:
    """Multiplies a transposed input in its own layout, where a linear would copy it to make one matrix of all samples.

    It is off by default: a product for each sample saves the copy, but its gradient of the weight is summed over
    samples.

    It pays where the input is large and the weight small, so that the copy takes most of the time.
    """
    for node in graph.find(aten.linear):
        bound = graph.call(node, aten.linear)
        if bound is not None and swapped(bound["input"]) is not None:
            rewrite.record(_replace_transposed_input(graph, rewrite, node, bound), node)


def _replace_transposed_input(graph: GraphView, rewrite: Rewriter, node: Node, bound: Bound) -> No | None:
    x, weight, bias = bound["input"], bound["weight"], bound["bias"]
    tensor, matrix = tensor_of(x), tensor_of(weight)
    if tensor is None or tensor.dim() < 3 or matrix is None or matrix.dim() != 2:
        return No("a matrix is multiplied without a copy anyway")
    if not (alike := are_of_one_kind(x, weight, bias, node)):
        return alike
    if len(x.users) > 1:
        return No(f"{x.name} is used elsewhere", x)
    if not (verdict := may_be_product(graph, node, (x, weight, bias))):
        return verdict
    transposed = rewrite.insert(aten.transpose.int, weight, 0, 1, before=node)
    product = rewrite.insert(aten.matmul, x, insert_expanded(rewrite, transposed, x, node), before=node)
    rewrite.replace(node, product if bias is None else rewrite.insert(aten.add, product, bias, before=node))
    return None


@permute_linear_fusion.example
def transposed_input(
    x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8), b: torch.Tensor = f32(3)
) -> torch.Tensor:
    return F.linear(x.permute(0, 2, 1), w, b)


@permute_linear_fusion.refuses("a matrix is multiplied")
def transposed_matrix(x: torch.Tensor = f32(8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    return F.linear(x.t(), w)


@permute_linear_fusion.refuses("is used elsewhere")
def shared_input(
    x: torch.Tensor = f32(4, 8, 6), v: torch.Tensor = f32(3, 8), w: torch.Tensor = f32(3, 8)
) -> torch.Tensor:
    rows = x.mT
    return F.linear(rows, v) * F.linear(rows, w)


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
def operand_for_all_samples(graph: GraphView, rewrite: Rewriter, node: Node) -> No | None:
    """`a.mT @ w` of a batch and a matrix: one product for each sample; a single one would copy `a`."""
    bound = graph.bind(node)
    if not isinstance(bound, Bound):
        return None
    left, right = bound["self"], bound["other"]
    batch, matrix = (left, right) if rank_of(right) == 2 else (right, left)
    if rank_of(matrix) != 2 or rank_of(batch) < 3 or (view := swapped(batch)) is None:
        return None
    if len(batch.users) > 1:
        return No(f"{batch.name} is used elsewhere")
    if not (verdict := may_be_product(graph, node, (left, right))):
        return verdict
    expanded = insert_expanded(rewrite, matrix, view, node)
    rewrite.replace(node, aten.matmul, *((batch, expanded) if batch is left else (expanded, batch)))
    return None


def _copied(graph: GraphView, node: Any) -> Node | None:
    """The transposed view that a node is a contiguous copy of."""
    bound = graph.call(node, *_COPIES)
    if bound is None:
        return None
    view = bound["self"]
    here, there = tensor_of(node), tensor_of(view)
    if swapped(view) is None or here is None or there is None or known_equal(here.stride(), there.stride()):
        return None
    return view if isinstance(view, Node) else None


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
