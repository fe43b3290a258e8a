"""Computes the maximum and the sum of a softmax in one pass over its input."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from eductor.engines.inductor.engine import online_softmax
from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import tensor_of
from eductor.graph.view import GraphView
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="reassociates", devices="cuda", on=False)
def prepare_softmax(graph: GraphView, rewrite: Rewriter) -> None:
    """Computes the maximum and the sum of a softmax in one pass over its input.

    The engine's kernel corrects the sum whenever it meets a larger number. What the softmax is made of besides stays as
    it is.

    It pays for rows that do not stay in a cache: the input is read once less.
    """
    for node in graph.find(aten.amax):
        found = _sum_of_exponentials(graph, node)
        if isinstance(found, str):
            rewrite.reject(found, node)
            continue
        x, dim, total = found
        both = rewrite.insert(online_softmax(), x, dim, before=node)
        rewrite.replace(node, operator.getitem, both, 0)
        rewrite.replace(total, operator.getitem, both, 1)


def _sum_of_exponentials(graph: GraphView, largest: Node) -> tuple[Node, int, Node] | str:
    """The input of a softmax, its dimension, and the sum of what is computed from its maximum; or why it is none."""
    bound, value = graph.bind(largest), tensor_of(largest)
    if not isinstance(bound, Bound) or value is None or not value.dtype.is_floating_point:
        return "it is no maximum of floating-point numbers"
    x, dims = bound["self"], bound["dim"]
    if len(dims) != 1 or not bound["keepdim"] or not value.dim():
        return "it is not along one dimension that stays"
    dim = dims[0] % value.dim()
    for less in largest.users:
        if not _reads(graph, less, aten.sub, self=x, other=largest, alpha=1):
            continue
        for power in less.users:
            if not _reads(graph, power, aten.exp, self=less):
                continue
            for total in power.users:
                dims_of = [[dim], [dim - value.dim()]]
                if any(_reads(graph, total, aten.sum, self=power, dim=d, keepdim=True, dtype=None) for d in dims_of):
                    return x, dim, total
    return "nobody adds up the exponentials of what is less than it"


def _reads(graph: GraphView, node: Node, op: object, **arguments: object) -> bool:
    """Whether a node calls an operator with these arguments."""
    bound = graph.bind(node) if graph.is_call(node, op) else None  # type: ignore[arg-type]
    return isinstance(bound, Bound) and all(_is_same(bound.get(name), x) for name, x in arguments.items())


def _is_same(given: object, wanted: object) -> bool:
    return given is wanted if isinstance(wanted, Node) else bool(given == wanted)


@prepare_softmax.example
def softmax_as_it_is_taken_apart(x: torch.Tensor = f32(4, 9)) -> torch.Tensor:
    power = (x - x.amax(-1, keepdim=True)).exp()
    return power / power.sum(-1, keepdim=True)


@prepare_softmax.refuses("nobody adds up the exponentials")
def maximum_alone(x: torch.Tensor = f32(4, 9)) -> torch.Tensor:
    return (x - x.amax(-1, keepdim=True)).exp()


@prepare_softmax.refuses("not along one dimension that stays")
def over_two_dimensions(x: torch.Tensor = f32(4, 9)) -> torch.Tensor:
    power = (x - x.amax((0, 1), keepdim=True)).exp()
    return power / power.sum((0, 1), keepdim=True)
