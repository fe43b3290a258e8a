"""Takes the mean of no elements from the operator for means, beside a variance."""

from __future__ import annotations

import operator

import torch

from eductor.graph import Bound, GraphView, Rewriter, known_equal, tensor_of
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="lower", numerics="exact")
def compute_empty_means(graph: GraphView, rewrite: Rewriter) -> None:
    """Takes the mean of no elements from the operator for means, beside a variance.

    Inductor's loop over nothing leaves zero for the mean, where eager divides zero by zero.

    It pays always: the mean is wrong without it.
    """
    for node in graph.find(aten.var_mean):
        bound = graph.bind(node)
        operand = tensor_of(bound["self"]) if isinstance(bound, Bound) else None
        if not isinstance(bound, Bound) or operand is None or not known_equal(operand.numel(), 0):
            rewrite.reject("its operand is not known to be empty", node)
            continue
        for mean in [user for user in node.users if user.target is operator.getitem and user.args[1] == 1]:
            arguments = (bound["self"], bound.get("dim"), bound.get("keepdim", False))
            rewrite.replace(mean, rewrite.insert(aten.mean.dim, *arguments, before=mean, like=mean))


@compute_empty_means.example
def no_rows(x: torch.Tensor = f32(0, 3)) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.var_mean(x, 0)


@compute_empty_means.refuses("not known to be empty")
def rows(x: torch.Tensor = f32(2, 3)) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.var_mean(x, 0)
