"""Replaces empty results by new tensors with the strides that eager gives them."""

from __future__ import annotations

import torch

from eductor.graph import GraphView, Rewriter, known_equal, tensor_of
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="lower", numerics="exact")
def make_empty_results(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces empty results by new tensors with the strides that eager gives them.

    Inductor computes nothing for them, and gives them strides of zero or the order of another value.

    It pays always: the strides are wrong without it.
    """
    for node in graph.candidates(graph.output.all_input_nodes):
        value = tensor_of(node)
        if value is None or not known_equal(value.numel(), 0) or node.target is aten.empty_strided.default:
            continue
        shape, strides = list(value.shape), list(value.stride())
        if node.op != "call_function":
            rewrite.reject("it is not computed in the graph", node)
        elif any(type(n) is not int for n in (*shape, *strides)):
            rewrite.reject("its sizes or strides may change", node)
        else:
            rewrite.replace(node, aten.empty_strided.default, shape, strides, dtype=value.dtype, device=value.device)


@make_empty_results.example
def no_rows(x: torch.Tensor = f32(0, 6)) -> torch.Tensor:
    return (x - 1).view(0, 2, 3)


@make_empty_results.refuses("not computed in the graph")
def no_rows_of_the_input(x: torch.Tensor = f32(0, 6), y: torch.Tensor = f32(2)) -> tuple[torch.Tensor, torch.Tensor]:
    return x, y + 1
