"""Makes relu return 0 where it is given no number, as kernels do that compute max(x, 0)."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import tensor_of
from eductor.graph.view import GraphView
from eductor.pipeline.base import f32, graph_pass, i64

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="changes", on=False)
def relu_nan_to_num(graph: GraphView, rewrite: Rewriter) -> None:
    """Makes relu return 0 where it is given no number, as kernels do that compute max(x, 0).

    It hides a NaN and stops its gradient, so it is only for who asks for it. Infinities stay in the result.

    It pays nothing in time: it is there for models whose numbers come from such kernels.
    """
    for node in graph.find(aten.relu, aten.relu_):
        bound = graph.bind(node)
        if not isinstance(bound, Bound):
            rewrite.reject(bound.reason, node)
            continue
        given, value = bound["self"], tensor_of(node)
        if value is None or not value.dtype.is_floating_point:
            rewrite.reject("only floating-point numbers can be no number", node)
        elif _is_cleaned(graph, node, given):
            rewrite.reject("its NaNs are replaced already", node)
        elif bound.packet is aten.relu_:
            # In front of it: autograd keeps the result of relu_, which must not be written again.
            clean = rewrite.insert(aten.nan_to_num_, given, nan=0.0, posinf=math.inf, neginf=-math.inf, before=node)
            rewrite.replace(node, aten.relu_, clean)
        else:
            relu = rewrite.insert(aten.relu, given, before=node)
            rewrite.replace(node, aten.nan_to_num, relu, nan=0.0, posinf=math.inf)


def _is_cleaned(graph: GraphView, node: Node, given: Node) -> bool:
    """Whether NaNs are replaced before relu, or by the only one who uses its result."""
    cleaners = (aten.nan_to_num, aten.nan_to_num_)
    user = next(iter(node.users)) if len(node.users) == 1 else None
    return any(graph.is_call(n, *cleaners) for n in (given, user) if n is not None)


@relu_nan_to_num.example
def relu(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.nn.functional.relu(x) * 2


@relu_nan_to_num.example
def relu_in_place(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    h = x * 2
    torch.nn.functional.relu(h, inplace=True)
    return h + 1


@relu_nan_to_num.refuses("replaced already")
def relu_of_numbers(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.relu(torch.nan_to_num(x))


@relu_nan_to_num.refuses("only floating-point")
def relu_of_integers(x: torch.Tensor = i64(2, 3)) -> torch.Tensor:
    return torch.relu(x)
