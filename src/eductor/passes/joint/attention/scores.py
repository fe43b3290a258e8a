"""Walks from the softmax up to the product of query and key, and reads each step in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, known_equal, tensor_of
from eductor.passes.joint.attention.numbers import CASTS, COPIES, number_of, rounded
from eductor.views import RESHAPES

aten = torch.ops.aten

PRODUCTS = {aten.bmm: ("self", "mat2"), aten.mm: ("self", "mat2")}


@dataclass(frozen=True, slots=True)
class Moved:
    """The same values in another shape, order, layout or floating dtype."""

    node: Node


@dataclass(frozen=True, slots=True)
class Scaled:
    """Multiplied by a number."""

    node: Node
    factor: float


@dataclass(frozen=True, slots=True)
class Added:
    """A mask or bias was added."""

    node: Node
    mask: Node


@dataclass(frozen=True, slots=True)
class Filled:
    """Where a condition holds, or where it does not, the scores were replaced by a number that masks them."""

    node: Node
    condition: Node
    keeps: bool
    """Whether the scores stay where the condition holds."""
    value: float


Step = Moved | Scaled | Added | Filled


@dataclass(frozen=True, slots=True)
class Scores:
    """The product of query and key, and what was done to it up to the softmax, first step first."""

    product: Node
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Scores:
        return Scores(self.product, (*self.steps, step))

    @property
    def scale(self) -> float:
        return math.prod(step.factor for step in self.steps if isinstance(step, Scaled))


def scores_of(graph: GraphView, node: Node) -> Scores | No:
    """Reads a value as scores, or says why it is not."""
    bound = graph.bind(node) if node.op == "call_function" else None
    if not isinstance(bound, Bound) or tensor_of(node) is None:
        return No(f"{node.name} is not a product of a query and a key", node)
    if bound.packet in PRODUCTS:
        return Scores(node)
    same = same_values(graph, node)
    if same is not None:
        return _then(graph, same, Moved(node))
    read = _STEPS.get(bound.packet)
    return read(graph, node, bound) if read else No(f"the scores pass through {bound.packet}")


def same_values(graph: GraphView, node: Node) -> Node | None:
    """The source of a view, a copy, a floating cast or an expansion to the same shape; None for any other node."""
    bound = graph.bind(node) if node.op == "call_function" else None
    here = tensor_of(node)
    if not isinstance(bound, Bound) or here is None:
        return None
    if bound.packet in CASTS:
        source = bound[CASTS[bound.packet]]
        there = tensor_of(source)
        floating = there is not None and there.dtype.is_floating_point and here.dtype.is_floating_point
        return source if floating and there is not None and there.device == here.device else None
    if bound.packet not in RESHAPES and bound.packet not in COPIES and bound.packet is not aten.expand:
        return None
    source = bound["self"]
    there = tensor_of(source)
    if there is None or there.dtype != here.dtype or bound.packet is aten.detach:
        return None
    if bound.packet is aten.expand and not known_equal(tuple(there.shape), tuple(here.shape)):
        return None
    return source if isinstance(source, Node) else None


def _then(graph: GraphView, source: Any, step: Step) -> Scores | No:
    found = scores_of(graph, source) if isinstance(source, Node) else No(f"{source} is not a tensor")
    return found.then(step) if isinstance(found, Scores) else found


def _scaled(graph: GraphView, node: Node, bound: Bound) -> Scores | No:
    a, b = bound["self"], bound["other"]
    divides = bound.packet is aten.div
    if bound.get("rounding_mode") is not None:
        return No("the scores are divided with rounding")
    number = number_of(graph, b)
    if number is None and not divides:
        a, b = b, a
        number = number_of(graph, b)
    if number is None:
        return No(f"the scores are scaled by {_name(b)}, whose value is not known")
    if not math.isfinite(number) or not number:
        return No(f"the scores are scaled by {number}")
    if not _is_full(a, node):
        return No("a scale gives the scores another shape")
    return _then(graph, a, Scaled(node, 1 / number if divides else number))


def _added(graph: GraphView, node: Node, bound: Bound) -> Scores | No:
    a, b = bound["self"], bound["other"]
    if bound.get("alpha", 1) != 1:
        return No(f"a mask is added with alpha={bound['alpha']}")
    return _either(graph, node, [(a, b), (b, a)], lambda mask: Added(node, mask))


def _filled(graph: GraphView, node: Node, bound: Bound) -> Scores | No:
    if bound.packet is aten.masked_fill:
        return _fill(graph, node, bound["self"], bound["value"], bound["mask"], keeps=False)
    condition, kept, other = bound["condition"], bound["self"], bound["other"]
    if number_of(graph, other) is not None:
        return _fill(graph, node, kept, other, condition, keeps=True)
    return _fill(graph, node, other, kept, condition, keeps=False)


def _fill(graph: GraphView, node: Node, scores: Any, value: Any, condition: Node, *, keeps: bool) -> Scores | No:
    number, tensor = number_of(graph, value), tensor_of(node)
    if number is None or tensor is None or not tensor.dtype.is_floating_point:
        return No(f"masked scores become {_name(value)}, whose value is not known")
    number = rounded(number, tensor.dtype)
    if not number <= torch.finfo(tensor.dtype).min:
        return No(f"masked scores become {number}, an ordinary number that other scores may be below")
    if not _is_full(scores, node):
        return No("a mask gives the scores another shape")
    return _then(graph, scores, Filled(node, condition, keeps, number))


def _either(graph: GraphView, node: Node, choices: list[tuple[Any, Any]], step: Callable[[Any], Step]) -> Scores | No:
    """Reads one operand of a sum as scores, the other one as the mask."""
    refusals: list[No] = []
    for scores, mask in choices:
        if not isinstance(scores, Node) or not isinstance(mask, Node) or tensor_of(mask) is None:
            refusals.append(No("a number is added to the scores", node))
        elif not _is_full(scores, node):
            refusals.append(No("a mask gives the scores another shape", node))
        else:
            found = _then(graph, scores, step(mask))
            if isinstance(found, Scores):
                return found
            refusals.append(found)
    return refusals[0]


def _is_full(scores: Any, node: Node) -> bool:
    """Whether the scores have the shape of the result, so that only the other operand was broadcast."""
    here, there = tensor_of(scores), tensor_of(node)
    return here is not None and there is not None and known_equal(tuple(here.shape), tuple(there.shape))


def _name(x: Any) -> str:
    return x.name if isinstance(x, Node) else str(x)


_STEPS: dict[Any, Callable[[GraphView, Node, Bound], Scores | No]] = {
    aten.mul: _scaled,
    aten.div: _scaled,
    aten.add: _added,
    aten.where: _filled,
    aten.masked_fill: _filled,
}
