"""The attention found around a softmax, as one value."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch.fx import Node

from eductor.compat import sort_key
from eductor.graph import Bound, GraphView, No, tensor_of
from eductor.passes.joint.attention.axes import Axes, axes_of
from eductor.passes.joint.attention.kernels import has_kernel, kernel_dtype
from eductor.passes.joint.attention.masks import Groups, Masks, copied, masks_of
from eductor.passes.joint.attention.operands import Operand
from eductor.passes.joint.attention.scores import PRODUCTS, Scores, scores_of
from eductor.passes.joint.attention.softmax import Softmax, forward_users
from eductor.passes.joint.attention.weights import Weights, weights_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(scale * query @ key^T + masks) @ value, as a graph spells it."""

    query: Operand
    key: Operand
    value: Operand
    scale: float
    masks: Masks
    dropout: float
    axes: Axes
    groups: Groups
    scores: Scores
    softmax: Softmax
    weights: Weights

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        return self.query, self.key, self.value

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the kernel computes in: the widest of the three, or wider."""
        tensors = [value_at(o.node) for o in self.operands]
        widest = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
        return kernel_dtype(tensors[0].device, widest)


def recognize(graph: GraphView, softmax: Softmax) -> Attention | No:
    """The attention around a softmax, or why there is none that one kernel computes."""
    scores = scores_of(graph, softmax.input)
    if isinstance(scores, No):
        return scores
    weights = weights_of(graph, softmax.output)
    if isinstance(weights, No):
        return weights
    axes = axes_of(graph, scores, (softmax.output, softmax.dim), weights)
    if isinstance(axes, No):
        return axes
    left, right = _factors(graph, scores.product)
    query, key = Operand(left, False), Operand(right, True)
    if not axes.by_row:  # the product has the keys in its rows
        query, key = Operand(right, True), Operand(left, False)
    factors = _factors(graph, weights.product)
    value = Operand(factors[1], False) if weights.is_left else Operand(factors[0], True)
    masks = masks_of(graph, scores, axes, value_at(softmax.output).dtype)
    if isinstance(masks, No):
        return masks
    dropout = weights.dropout.p if weights.dropout else 0.0
    groups = _groups(axes, masks)
    found = Attention(query, key, value, scores.scale, masks, dropout, axes, groups, scores, softmax, weights)
    width = value_at(value.node).transpose(-1, -2) if value.swapped else value_at(value.node)
    asked = value_at(query.node).transpose(-1, -2) if query.swapped else value_at(query.node)
    return has_kernel(asked, width, found.dtype, dropout, masks) and _stays_inside(found) and found


def _factors(graph: GraphView, product: Node) -> tuple[Node, Node]:
    bound = graph.bind(product)
    assert isinstance(bound, Bound)
    left, right = (bound[name] for name in PRODUCTS[bound.packet])
    return left, right


def _groups(axes: Axes, masks: Masks) -> Groups:
    """Batches and heads: more than two batch axes are grouped so that as few masks as possible are copied."""
    rest = (axes.large(axes.queries), axes.large((axes.key,)))
    splits = range(max(len(axes.batches) - 1, 0), 0, -1) or range(1)
    choices: list[Groups] = [(axes.batches[:i], axes.batches[i:], *rest) for i in splits]
    return min(choices, key=lambda groups: copied(masks, axes, groups))


def _stays_inside(found: Attention) -> Literal[True] | No:
    inside = set(core(found))
    for node in inside - {found.weights.product}:
        user = next((u for u in forward_users(node) if u not in inside), None)
        if user is not None:
            return No(f"{node.name} is used elsewhere, by {user.name}", node, user)
    return True


def core(found: Attention) -> list[Node]:
    """The calls from the first product to the second."""
    dropout = found.weights.dropout.nodes if found.weights.dropout else ()
    steps = (step.node for step in found.scores.steps)
    nodes = (found.scores.product, *steps, *found.softmax.nodes, *found.weights.moved, *dropout, found.weights.product)
    return sorted(dict.fromkeys(nodes), key=sort_key)


def value_at(node: Node) -> torch.Tensor:
    """The fake tensor of a node that is known to have one."""
    tensor = tensor_of(node)
    assert tensor is not None
    return tensor
