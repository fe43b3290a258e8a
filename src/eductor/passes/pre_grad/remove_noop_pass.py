"""Removes no-ops: dropout that drops nothing, casts to the same dtype, products with 1."""

from __future__ import annotations

from typing import Literal

import torch
from torch.fx import Node

from eductor.compat import has_hooks
from eductor.graph import Bound, GraphView, No, Rewriter, requires_grad, value_of
from eductor.graph.effects.gradient_order import same_sum_in_place_of
from eductor.passes.noops import (
    copy,
    may_be_alias,
    minus_zero,
    no_op,
    no_ops_of_both,
    plus_zero,
    same_view,
    times_one,
)
from eductor.pipeline import f32, i64, rule_pass

aten = torch.ops.aten


@rule_pass(stage="pre_grad", numerics="exact")
def remove_noop_pass() -> None:
    """Removes no-ops: dropout that drops nothing, casts to the same dtype, products with 1.

    Some return their argument itself, and can always be removed. Others return a view or a copy: these stay where the
    difference is observable, by a write, at an output or in a gradient.

    It pays always: a call less, often a copy less, and the calls before and after it become neighbours.
    """


# --------------------------------------------------------------------------------- calls that return their argument


def idle_dropout(bound: Bound) -> bool:
    return bound["train"] is False or bound["p"] == 0


def same_type(bound: Bound) -> bool:
    return not bound.get("copy", False) and bound.get("memory_format") in (None, torch.preserve_format)


def contiguous_already(bound: Bound) -> bool:
    """Any call: `no_op` checks that the strides stay, and then there is nothing to copy."""
    return True


def _always(graph: GraphView, node: Node, given: Node) -> Literal[True] | No:
    return True


_DROPOUTS = (aten.dropout, aten.feature_dropout, aten.alpha_dropout, aten.feature_alpha_dropout)
_IN_PLACE = (aten.dropout_, aten.feature_dropout_, aten.alpha_dropout_, aten.feature_alpha_dropout_)

no_op(remove_noop_pass, idle_dropout, *_DROPOUTS, source="input", allowed=_always)
no_op(remove_noop_pass, idle_dropout, *_IN_PLACE, allowed=_always, name="idle_dropout_in_place")
no_op(remove_noop_pass, same_type, aten.to, aten.type_as, allowed=_always)
no_op(remove_noop_pass, contiguous_already, aten.contiguous, allowed=_always)


@remove_noop_pass.rule(torch.nn.Identity)
def identity_module(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    given = node.all_input_nodes
    if len(given) != 1 or has_hooks(graph.module.get_submodule(str(node.target))):
        rewrite.reject("the module has hooks, or does not take one tensor", node)
    else:
        rewrite.replace(node, given[0])


# ----------------------------------------------------------------------------------- calls that return a view or copy


def cast_by_copy(bound: Bound) -> bool:
    """A cast that copies because of `copy=True` or a memory format."""
    return not same_type(bound)


def _may_replace(graph: GraphView, node: Node, given: Node) -> Literal[True] | No:
    if requires_grad(value_of(node)) != requires_grad(value_of(given)):
        return No(f"gradients flow through only one of {node.name} and {given.name}", node, given)
    if requires_grad(value_of(given)) and not (verdict := _unwritten(graph, given)):
        return verdict
    return same_sum_in_place_of(node, given) and may_be_alias(graph, node, given)


def _unwritten(graph: GraphView, given: Node) -> Literal[True] | No:
    """After a write, autograd sees another value: which user contributes to which gradient is no longer known."""
    return graph.effects.unwritten([given], next(iter(graph.nodes)), graph.output)


_VIEWS = (aten.view, aten.reshape, aten.expand, aten.permute, aten.transpose, aten.squeeze)

no_ops_of_both(remove_noop_pass, _may_replace)
no_op(remove_noop_pass, same_view, *_VIEWS, aten.expand_as, aten.view_as, allowed=_may_replace)
no_op(remove_noop_pass, copy, aten.clone, aten.alias, allowed=_may_replace)
no_op(remove_noop_pass, cast_by_copy, aten.to, allowed=_may_replace)
no_op(remove_noop_pass, times_one, aten.mul, aten.div, allowed=_may_replace)
no_op(remove_noop_pass, minus_zero, aten.sub, allowed=_may_replace)
no_op(remove_noop_pass, plus_zero, aten.add, allowed=_may_replace)


@remove_noop_pass.example
def dropout_in_evaluation(x: torch.Tensor = f32(2, 3), w: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    h = torch.nn.functional.dropout(x, p=0.5, training=False)
    return torch.nn.functional.linear(h, w)


@remove_noop_pass.example
def cast_to_the_same_dtype(x: torch.Tensor = i64(2, 3)) -> torch.Tensor:
    return x.long().contiguous().reshape(2, 3) + 1


@remove_noop_pass.example
def neutral_arithmetic(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return ((x * 1 - 0) ** 1).sin()


@remove_noop_pass.refuses("-0.0 becomes 0.0")
def sum_with_zero(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return (x + 0).sin()


@remove_noop_pass.refuses("dtype")
def product_of_integers_with_a_float(x: torch.Tensor = i64(2, 3)) -> torch.Tensor:
    return (x * 1.0).sin()


@remove_noop_pass.refuses("writes")
def copy_that_is_written(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.clone().add_(1) + x


@remove_noop_pass.refuses("leaves the graph")
def copy_that_is_returned(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.clone().t()
