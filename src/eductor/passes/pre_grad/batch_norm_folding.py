"""Folds a batch norm in evaluation mode into the weights of the convolution or linear before it.

s  = gamma / sqrt(var + eps)
batch_norm(conv(x, W, b)) = conv(x, W * s, beta + s * (b - mean))        per channel of the result
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, difference, is_row_major, known_equal, tensor_of, value_of

aten = torch.ops.aten

CONVOLUTIONS = (aten.conv1d, aten.conv2d, aten.conv3d)
TRANSPOSED = (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)


@dataclass(frozen=True, slots=True)
class Fold:
    """A batch norm in evaluation mode, and the call whose result it normalizes."""

    norm: Node
    call: Node
    _norm: Bound
    _call: Bound

    @property
    def weight(self) -> Node:
        found: Node = self._call["weight"]
        return found

    @property
    def statistics(self) -> tuple[Node, Node]:
        return self._norm["running_mean"], self._norm["running_var"]

    @property
    def parameters(self) -> list[Node]:
        """All that the new weights are computed from."""
        given = (self.weight, self._call["bias"], self._norm["weight"], self._norm["bias"], *self.statistics)
        return [node for node in given if node is not None]

    def apply(self, rewrite: Rewriter) -> tuple[Node, Node]:
        """Replaces both by one call; returns its weight and its bias."""
        weight, bias = self._folded(rewrite)
        arguments = {**self._call.arguments, "weight": weight, "bias": bias}
        call = replace(self._call, arguments=arguments, given=self._call.given | {"bias"})
        args, kwargs = call.call()
        rewrite.replace(self.norm, call.op, *args, **kwargs)
        return weight, bias

    def _folded(self, rewrite: Rewriter) -> tuple[Node, Node]:
        """The new weight and bias, in the precision of a batch norm: float64 on the CPU, else at least float32.

        Only first operands are cast; the others are promoted to their dtype.
        """
        weight = value_of(self.weight)
        wide = torch.promote_types(weight.dtype, torch.float32)
        precise = torch.float64 if weight.device.type == "cpu" else wide

        def make(op: Any, *args: Any) -> Node:
            return rewrite.insert(op, *args, before=self.norm)

        def cast(node: Node, to: torch.dtype) -> Node:
            return node if value_of(node).dtype == to else make(aten.to.dtype, node, to)

        mean, var = self.statistics
        gamma, beta, bias = self._norm["weight"], self._norm["bias"], self._call["bias"]
        scale = make(aten.rsqrt.default, make(aten.add.Scalar, cast(var, precise), self._norm["eps"]))
        scale = scale if gamma is None else make(aten.mul.Tensor, scale, gamma)
        if bias is None:
            moved = make(aten.mul.Tensor, scale, mean)
            shift = make(aten.neg.default, moved) if beta is None else make(aten.sub.Tensor, beta, moved)
        else:
            shift = make(aten.mul.Tensor, make(aten.sub.Tensor, cast(bias, precise), mean), scale)
            shift = shift if beta is None else make(aten.add.Tensor, shift, beta)
        scaled = make(aten.mul.Tensor, cast(self.weight, wide), self._per_channel(cast(scale, wide), make))
        return cast(scaled, weight.dtype), cast(shift, weight.dtype)

    def _per_channel(self, scale: Node, make: Callable[..., Node]) -> Node:
        """The scale in the shape of the weight: a transposed convolution has its channels second, by groups."""
        shape = value_of(self.weight).shape
        ones = [1] * (len(shape) - 2)
        if self._call.packet not in TRANSPOSED:
            return make(aten.reshape.default, scale, [-1, 1, *ones])
        groups = self._call["groups"]
        if groups == 1:
            return make(aten.reshape.default, scale, [1, -1, *ones])
        by_group = make(aten.reshape.default, scale, [groups, 1, shape[1]])
        rows = make(aten.expand.default, by_group, [groups, shape[0] // groups, shape[1]])
        return make(aten.reshape.default, rows, [shape[0], shape[1], *ones])


def folds(graph: GraphView, rewrite: Rewriter, *callers: Any) -> Iterator[Fold]:
    """The batch norms that can be folded into one of these calls; the others are rejected with a reason."""
    for norm in graph.find(aten.batch_norm):
        fold = _read(graph, norm, callers)
        if isinstance(fold, Fold):
            yield fold
        elif fold is not None:
            rewrite.reject(fold, norm)


def _read(graph: GraphView, norm: Node, callers: tuple[Any, ...]) -> Fold | No | None:
    """A fold; None where the input of the batch norm is not such a call."""
    bound = graph.bind(norm)
    if not isinstance(bound, Bound):
        return bound
    call = bound["input"]
    if not graph.is_call(call, *callers):
        return None
    inner = graph.bind(call)
    if not isinstance(inner, Bound):
        return inner
    fold = Fold(norm, call, bound, inner)
    return _has_fixed_statistics(bound) and _may_fold(graph, fold, inner) and fold


def _has_fixed_statistics(norm: Bound) -> Literal[True] | No:
    if norm["training"] is not False:
        return No("the batch norm is not known to be in evaluation mode")
    if not isinstance(norm["running_mean"], Node) or not isinstance(norm["running_var"], Node):
        return No("the batch norm has no running statistics")
    if not isinstance(norm["eps"], (int, float)):
        return No("the eps of the batch norm is not a number")
    return True


def _may_fold(graph: GraphView, fold: Fold, call: Bound) -> Literal[True] | No:
    if len(fold.call.users) > 1:
        return No(f"{fold.call.name} is used elsewhere", fold.call)
    values = [tensor_of(node) for node in (fold.call, fold.norm, *fold.parameters)]
    if any(value is None or not value.dtype.is_floating_point for value in values):
        return No("an operand is not known to be a floating-point tensor")
    result, weight = value_of(fold.call), value_of(fold.weight)
    if result.dim() != weight.dim():
        # a single sample has no dimension for the batch
        return No("the channels of the batch norm are not those of the weight")
    if any(type(size) is not int for size in weight.shape) or type(call.get("groups", 1)) is not int:
        return No("the sizes of the weight are not known")
    if unlike := difference(result, value_of(fold.norm)):
        return No(f"the batch norm changes its input in {unlike}")
    if not is_row_major(weight) and not known_equal(torch.empty_like(weight).stride(), weight.stride()):
        return No("the weight is not dense")
    return graph.effects.may_move(fold.call, fold.norm)
