"""A variance with a mean, of no elements: Inductor's loop over nothing leaves zero for the mean, where eager divides by none."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from eductor.compat import statically_known_true
from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import tensor_of

aten = torch.ops.aten


def compute_empty_means(rewrite: Rewriter) -> None:
    """Such a mean comes from the operator for means, which does divide."""
    for node in rewrite.view.find(aten.var_mean):
        bound = rewrite.view.bind(node)
        if not isinstance(bound, Bound) or not _is_empty(bound["self"]):
            continue
        for mean in [user for user in node.users if user.target is operator.getitem and user.args[1] == 1]:
            arguments = (bound["self"], bound.get("dim"), bound.get("keepdim", False))
            rewrite.replace(mean, rewrite.insert(aten.mean.dim, *arguments, before=mean, like=mean))


def _is_empty(operand: Node) -> bool:
    value = tensor_of(operand)
    return value is not None and bool(statically_known_true(value.numel() == 0))
