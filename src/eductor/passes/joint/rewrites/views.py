"""Chains of views: merges reshapes and permutations, and removes those that cancel."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, Rewriter, difference, is_row_major, tensor_of, value_of
from eductor.views import order_of

aten = torch.ops.aten

RESHAPES = (aten.view.default, aten._unsafe_view)
SQUEEZES = (aten.squeeze, aten.unsqueeze)
PERMUTATIONS = (aten.permute, aten.transpose, aten.t)

_IN_ORDER = (aten.view, aten._unsafe_view, *SQUEEZES)


def one_reshape(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """`view(view(x, s), t)` is `view(x, t)`, and `x` where t is its shape, whoever else uses what is between."""
    bound, operand = _view(graph, node, _IN_ORDER)
    if bound is None:
        return
    source = operand
    while (inner := _view(graph, source, _IN_ORDER)[1]) is not None:
        source = inner
    result, tensor = value_of(node), value_of(source)
    is_shorter = source is not operand and bound.packet not in SQUEEZES
    is_equal = result.dim() == tensor.dim() and difference(result, tensor) is None
    if is_equal and _gives_way(graph, rewrite, node, source, is_shorter):
        return
    if is_shorter and _can_be_viewed(tensor, result):
        # It has the value that it had: to evaluate it anew would install guards on symbolic sizes.
        rewrite.update(node, args=(source, _sizes(bound, result)), kwargs={}, respelled=True)
    elif is_shorter:
        rewrite.reject(f"{source.name} cannot be viewed in this shape without a copy", node)


def one_permutation(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """`permute(permute(x, p), q)` is one permutation of `x`, or `x` itself, whoever else uses what is between."""
    bound, operand = _view(graph, node, PERMUTATIONS)
    if bound is None:
        return
    order, source = _order(bound), operand
    while (inner := _view(graph, source, PERMUTATIONS)[0]) is not None:
        within, source = _order(inner), inner["self"]
        order = [within[d] for d in order]
    is_shorter = source is not operand
    if order == sorted(order) and _gives_way(graph, rewrite, node, source, is_shorter):
        return
    if is_shorter:
        rewrite.update(node, target=aten.permute.default, args=(source, order), kwargs={}, respelled=True)


def _gives_way(graph: GraphView, rewrite: Rewriter, node: Node, source: Node, is_shorter: bool) -> bool:
    """Replaces a view by its source, to which it is equal, unless the alias would be observable."""
    verdict = graph.effects.may_alias(node, source)
    if verdict:
        rewrite.replace(node, source)
    elif not is_shorter:
        rewrite.reject(verdict, node)
    return bool(verdict)


def _view(graph: GraphView, node: Any, operators: tuple[Any, ...]) -> tuple[Bound | None, Any]:
    """A view by one of the operators, and its operand; None for other calls, and for a view with another dtype."""
    bound = graph.bind(node) if isinstance(node, Node) else None
    if not isinstance(bound, Bound) or bound.packet not in operators or "dtype" in bound.arguments:
        return None, None
    known = tensor_of(node) is not None and tensor_of(bound["self"]) is not None
    return (bound, bound["self"]) if known else (None, None)


def _order(permutation: Bound) -> list[int]:
    """The dimensions of what a permutation views, in the order of the result."""
    order = order_of(permutation, value_of(permutation["self"]).dim())
    assert order is not None
    return order


def _sizes(bound: Bound, result: torch.Tensor) -> list[Any]:
    """The arguments for the sizes of a view, with a -1 replaced by the size that it stands for, unless that is symbolic."""
    known = zip(bound["size"], result.shape, strict=True)
    return [size if isinstance(size, int) and isinstance(given, int) else given for given, size in known]


def _can_be_viewed(source: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether a tensor has a view with the shape and the strides of the result, which has its elements in their order."""
    if is_row_major(source):
        return True
    if any(isinstance(size, torch.SymInt) for size in (*source.shape, *source.stride(), *result.shape)):
        return False
    try:
        return bool(source.view(result.shape).stride() == result.stride())
    except RuntimeError:
        return False
