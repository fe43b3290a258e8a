"""Turns a stack into a cat of unsqueezed operands where the next step merges them, and a stack of one into an unsqueeze."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from eductor.compat import FakeTensor, enable_python_dispatcher
from eductor.graph import GraphView, No, Rewriter, difference, tensor_of, value_of
from eductor.pipeline.base import f32, graph_pass
from eductor.views import concat_nest

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def stack_to_unsqueeze_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Turns a stack into a cat of unsqueezed operands where the next step merges them, and a stack of one into an unsqueeze.

    Any other stack is the shorter form, and stays.

    It pays by the next step, which replaces the result by one reshape; a stack of one becomes a view, not a copy.
    """
    for node in graph.find(aten.stack):
        rewrite.record(_unsqueeze(graph, rewrite, node), node)


def _unsqueeze(graph: GraphView, rewrite: Rewriter, node: Node) -> No | None:
    bound = graph.call(node, aten.stack)
    operands = bound["tensors"] if bound is not None else ()
    if bound is None or not isinstance(operands, (list, tuple)) or tensor_of(node) is None:
        return No("its operands are not a list of known tensors")
    dim = bound["dim"] % value_of(node).dim()
    if len(operands) == 1:
        return _unsqueeze_one(graph, rewrite, node, operands[0], dim)
    nest = concat_nest(graph, node)
    if isinstance(nest, No) or not nest.is_one or "reshape" not in nest.kinds:
        return No("its operands are not reshaped parts of one tensor, which the next step would merge")
    if not _has_same_strides(node, operands, dim):
        return No("a cat would have other strides")
    parts = [rewrite.insert(aten.unsqueeze, x, dim, before=node, like=node) for x in operands]
    rewrite.replace(node, aten.cat, parts, dim)
    return None


def _has_same_strides(node: Node, operands: Sequence[Node], dim: int) -> bool:
    """Whether a cat has the strides of the stack: where several orders of the dimensions fit, they may choose others."""
    values = [value_of(x).detach() for x in operands]
    assert isinstance(values[0], FakeTensor)
    with values[0].fake_mode, torch.no_grad(), enable_python_dispatcher():
        made = torch.cat([value.unsqueeze(dim) for value in values], dim)
    return difference(made, value_of(node)) is None


def _unsqueeze_one(graph: GraphView, rewrite: Rewriter, node: Node, operand: Node, dim: int) -> No | None:
    """Replaces a stack of one, which is a copy, by an unsqueeze, if aliasing the operand is not observable."""
    if not (verdict := graph.effects.may_alias(node, operand)):
        return verdict
    new = rewrite.insert(aten.unsqueeze, operand, dim, before=node, like=node)
    if difference(value_of(new), value_of(node)) is not None:
        layout = torch.contiguous_format
        new = rewrite.insert(aten.clone, new, before=node, like=node, memory_format=layout)
    rewrite.replace(node, new)
    return None


@stack_to_unsqueeze_pass.example
def reshaped_chunks(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.stack([t.reshape(4, 2, 2) for t in torch.chunk(x, 3, 1)], -1) * 2


@stack_to_unsqueeze_pass.example
def stack_of_one(x: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    return torch.stack([x.sin()], dim=1) * 2


@stack_to_unsqueeze_pass.refuses("not reshaped parts of one tensor, which the next step would merge")
def of_two_tensors(x: torch.Tensor = f32(4, 3), y: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    return torch.stack([x, y])


@stack_to_unsqueeze_pass.refuses("a separate output")
def stack_of_one_that_is_returned(x: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    return torch.stack([x])


@stack_to_unsqueeze_pass.refuses("writes")
def stack_of_one_that_is_written(x: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    y = torch.stack([x]).mul_(2)
    return x + y.sum()


@stack_to_unsqueeze_pass.refuses("a cat would have other strides")
def columns_of_a_transposed_tensor(x: torch.Tensor = f32(2, 6)) -> torch.Tensor:
    return torch.stack([t.reshape(-1, 1, 1) for t in torch.chunk(x.t(), 2, 1)])
