"""Scales a softmax after its maximum was taken away: `(x - max(x)) * c` in place of `x * c - max(x * c)`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph.no import No
from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import known_equal, tensor_of, value_of
from eductor.graph.view import GraphView
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten
prims = torch.ops.prims


@graph_pass(stage="joint", numerics="reassociates", on=False)
def stabilize_scaled_softmax(graph: GraphView, rewrite: Rewriter) -> None:
    """Scales a softmax after its maximum was taken away: `(x - max(x)) * c` in place of `x * c - max(x * c)`.

    The largest exponent is then 0, though code generation computes the product twice, once with a fused multiply-add.
    It is off by default, since that cancels in the quotient. Rows of 2048 take as long either way on a CPU, and are as
    exact (2e-6 in float32), unless all have a large number in common: 8e-4 becomes 1e-6 where that is 1e5.

    It pays in accuracy alone, for rows with large numbers.
    """
    for maximum in graph.find(aten.amax):
        scores = _operand(graph, maximum, "self")
        scaled = _scaled(graph, scores)
        if scaled is None:
            continue
        if verdict := _may_rewrite(graph, maximum, scores, scaled):
            _rewrite(graph, rewrite, maximum, scores, scaled)
        else:
            rewrite.reject(verdict, maximum)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """What is multiplied or divided by something, and what the nodes from the product to the scores are."""

    product: Bound
    source: Node
    by: Any
    nodes: tuple[Node, ...]

    @property
    def factor(self) -> float:
        """How far it is scaled."""
        return float(self.by) if self.product.packet is aten.mul else 1 / float(self.by)


def _scaled(graph: GraphView, scores: Any) -> _Scaled | None:
    """A product, or its conversion."""
    is_converted = isinstance(scores, Node) and graph.is_call(scores, prims.convert_element_type)
    node = _operand(graph, scores, "a") if is_converted else scores
    bound = graph.bind(node) if isinstance(node, Node) and graph.is_call(node, aten.mul, aten.div) else None
    if not isinstance(bound, Bound) or bound.get("rounding_mode") is not None:
        return None
    source, by = bound["self"], _number(graph, bound["other"])
    if bound.packet is aten.mul and isinstance(by, Node):
        source, by = by, _number(graph, source)
    nodes = (node, scores) if is_converted else (node,)
    return _Scaled(bound, source, by, nodes) if isinstance(source, Node) else None


def _may_rewrite(graph: GraphView, maximum: Node, scores: Node, scaled: _Scaled) -> Literal[True] | No:
    bound = graph.bind(maximum)
    difference = next((u for u in maximum.users if graph.is_call(u, aten.sub)), None)
    taken = graph.bind(difference) if difference is not None else None
    if not isinstance(bound, Bound) or not isinstance(taken, Bound) or difference is None:
        return No("no softmax follows")
    if not bound["keepdim"] or taken["self"] is not scores or taken["other"] is not maximum or taken["alpha"] != 1:
        return No("no softmax follows")
    if len(maximum.users) > 1 or not all(graph.is_call(u, aten.exp) for u in difference.users):
        return No("the maximum, or what is less by it, is used otherwise than for a softmax")
    users = {user for node in scaled.nodes for user in node.users}
    if users - {*scaled.nodes, maximum, difference}:
        return No("the scaled scores are used elsewhere")
    return _may_scale_later(scaled, value_of(scores))


def _may_scale_later(scaled: _Scaled, scores: torch.Tensor) -> Literal[True] | No:
    """Only where the sums and products of finite numbers that overflow are those whose exponential is 0 in any case."""
    tensor, product = tensor_of(scaled.source), value_of(scaled.nodes[0])
    if not isinstance(scaled.by, (int, float)):
        return No("it is not scaled by a number that is known")
    if tensor is None or not tensor.dtype.is_floating_point or tensor.dtype is not product.dtype:
        return No("the product has another dtype than what is scaled")
    if not known_equal(tuple(tensor.shape), tuple(product.shape)):
        return No("the product has another shape than what is scaled")
    if not math.isfinite(scaled.by) or scaled.by == 0:
        return No(f"it is scaled by {scaled.by}")
    if abs(scaled.factor) > 1:
        return No("the product may overflow, which a softmax answers with NaN")
    is_tiny = abs(scaled.factor) * torch.finfo(scores.dtype).max < 1024
    return No("the factor is so small that what overflows without it counts") if is_tiny else True


def _rewrite(graph: GraphView, rewrite: Rewriter, maximum: Node, scores: Node, scaled: _Scaled) -> None:
    (difference,) = maximum.users
    bound, dtype = graph.bind(maximum), value_of(scores).dtype
    assert isinstance(bound, Bound)
    source = scaled.source
    if value_of(source).dtype is not dtype:
        source = rewrite.insert(prims.convert_element_type, source, dtype, before=maximum)
    extreme = aten.amax if scaled.factor > 0 else aten.amin
    least = rewrite.insert(extreme, source, bound["dim"], True, before=maximum)
    shifted = rewrite.insert(aten.sub.Tensor, source, least, before=difference)
    rewrite.replace(difference, scaled.product.packet, shifted, scaled.by)


def _operand(graph: GraphView, node: Node, name: str) -> Any:
    bound = graph.bind(node)
    return bound[name] if isinstance(bound, Bound) else None


def _number(graph: GraphView, given: Any) -> Any:
    """The number that an operand is, everywhere; the operand itself where that is not known."""
    if not isinstance(given, Node) or not graph.is_call(given, aten.full, aten.scalar_tensor):
        return given
    bound = graph.bind(given)
    found = bound.get("fill_value", bound.get("s")) if isinstance(bound, Bound) else None
    return found if isinstance(found, (int, float)) else given


def _as_decomposed(x: torch.Tensor) -> torch.Tensor:
    """A softmax over the last dimension as code generators see it."""
    exponents = (x - x.amax(-1, keepdim=True)).exp()
    return exponents / exponents.sum(-1, keepdim=True)


@stabilize_scaled_softmax.example
def scaled_scores(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return _as_decomposed(x * 0.125)


@stabilize_scaled_softmax.example
def divided_and_turned(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return _as_decomposed(x / -3.0)


@stabilize_scaled_softmax.refuses("may overflow")
def enlarged_scores(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return _as_decomposed(x * 8.0)


@stabilize_scaled_softmax.refuses("not scaled by a number that is known")
def learned_scale(x: torch.Tensor = f32(4, 8), scale: torch.Tensor = f32(1)) -> torch.Tensor:
    return _as_decomposed(x * scale)


@stabilize_scaled_softmax.refuses("used elsewhere")
def scores_that_are_returned(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    scores = x * 0.125
    return _as_decomposed(scores), scores
