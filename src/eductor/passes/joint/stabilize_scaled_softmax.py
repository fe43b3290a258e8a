"""Scales the scores of a softmax after subtracting their maximum: `(x - max(x)) * c`, not `x * c - max(x * c)`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, known_equal, tensor_of, value_of
from eductor.passes.joint.attention.numbers import number_of
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten
prims = torch.ops.prims


@graph_pass(stage="joint", numerics="reassociates", on=False)
def stabilize_scaled_softmax(graph: GraphView, rewrite: Rewriter) -> None:
    """Scales the scores of a softmax after subtracting their maximum: `(x - max(x)) * c`, not `x * c - max(x * c)`.

    The largest exponent is then 0, though code generation computes the product twice, once with a fused multiply-add.
    It is off by default, since that error cancels in the quotient. Rows of 2048 take equally long on a CPU, and are
    equally exact (2e-6 in float32), unless all elements share a large offset: at 1e5, the error falls from 8e-4 to 1e-6.

    It pays in accuracy only, for rows of large numbers.
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
    """A source that is multiplied or divided, and the nodes from the product to the scores."""

    product: Bound
    source: Node
    by: Any
    nodes: tuple[Node, ...]

    @property
    def factor(self) -> float:
        """The number by which the source is multiplied."""
        return float(self.by) if self.product.packet is aten.mul else 1 / float(self.by)


def _scaled(graph: GraphView, scores: Any) -> _Scaled | None:
    """Reads scores as a product or quotient, or its conversion."""
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
        return No("the maximum or the shifted scores are used outside the softmax")
    users = {user for node in scaled.nodes for user in node.users}
    if users - {*scaled.nodes, maximum, difference}:
        return No("the scaled scores are used elsewhere")
    return _may_scale_later(scaled, value_of(scores))


def _may_scale_later(scaled: _Scaled, scores: torch.Tensor) -> Literal[True] | No:
    """Whether only terms whose exponential is 0 in any case may overflow, given finite numbers."""
    tensor, product = tensor_of(scaled.source), value_of(scaled.nodes[0])
    if not isinstance(scaled.by, (int, float)):
        return No("it is not scaled by a known number")
    if tensor is None or not tensor.dtype.is_floating_point or tensor.dtype is not product.dtype:
        return No("the product and its source differ in dtype")
    if not known_equal(tuple(tensor.shape), tuple(product.shape)):
        return No("the product and its source differ in shape")
    if not math.isfinite(scaled.by) or scaled.by == 0:
        return No(f"it is scaled by {scaled.by}")
    if abs(scaled.factor) > 1:
        return No("the product may overflow, and the softmax would be NaN")
    is_tiny = abs(scaled.factor) * torch.finfo(scores.dtype).max < 1024
    return No("the factor is so small that overflow without it would change the result") if is_tiny else True


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
    """The number that fills an operand; the operand itself if that is not known."""
    found = number_of(graph, given)
    return given if found is None else found


def _as_decomposed(x: torch.Tensor) -> torch.Tensor:
    """A decomposed softmax over the last dimension."""
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


@stabilize_scaled_softmax.refuses("not scaled by a known number")
def learned_scale(x: torch.Tensor = f32(4, 8), scale: torch.Tensor = f32(1)) -> torch.Tensor:
    return _as_decomposed(x * scale)


@stabilize_scaled_softmax.refuses("used elsewhere")
def scores_that_are_returned(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    scores = x * 0.125
    return _as_decomposed(scores), scores
