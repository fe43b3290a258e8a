"""Reduces a chain of reshapes, squeezes and permutations to the shortest one that reads the same."""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, difference, is_row_major, value_of
from eductor.graph.effects.gradient_order import same_sum, same_sum_in_place_of, uses
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import RESHAPES, SourceView, ViewPlan, check_equal, plan_views, source_view_through


@graph_pass(stage="pre_grad", numerics="exact")
def remove_reshape_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Reduces a chain of reshapes, squeezes and permutations to the shortest one that reads the same.

    It pays always: fewer calls, and later passes see that linears share an input.
    """
    for root in graph.find(*RESHAPES):
        rewrite.record(_shorten(graph, rewrite, root, checks=context.options.debug), root)


def _shorten(graph: GraphView, rewrite: Rewriter, root: Node, *, checks: bool) -> No | None:
    # The cheap check first: most reshapes are no chain.
    bound = graph.call(root, *RESHAPES)
    is_chain = bound is not None and _is_link(graph, bound.get("self"))
    found = source_view_through(graph, root, functools.partial(_is_link, graph)) if is_chain else None
    if found is None or len(found.nodes) < 2:
        return No("it is not a chain of reshapes, or a reshape in it is used elsewhere")
    made = plan_views(found.index_map)
    if made is None or len(made.steps) >= len(found.nodes):
        return No("no shorter chain reads the same")
    if not (verdict := _may_shorten(graph, root, found, made)):
        return verdict
    new = made.emit(rewrite, before=root, like=root)
    if checks:
        check_equal(root, new, {made.index_map.source})
    rewrite.replace(root, new)
    return None


def _is_link(graph: GraphView, node: Any) -> bool:
    """Whether a value is a reshape without users outside of the chain."""
    return graph.call(node, *RESHAPES) is not None and len(node.users) == 1


def _may_shorten(graph: GraphView, root: Node, found: SourceView, made: ViewPlan) -> Literal[True] | No:
    source, effects = made.index_map.source, graph.effects
    first = found.nodes[0]
    verdict = effects.same_region((root, *found.nodes)) and effects.unwritten((source, *found.nodes), first, root)
    if verdict and made.steps:
        verdict = same_sum(source, uses(source, but=found.nodes), first, root)
    elif verdict:
        verdict = same_sum_in_place_of(root, source, through=first)
    if not verdict:
        return verdict
    unlike = difference(value_of(root), made.value)
    if unlike:
        return No(f"the shorter chain would differ: {unlike}")
    views = made.is_view and made.steps and all(_is_view(graph, node) for node in found.nodes)
    return True if views else effects.may_alias(root, source)


def _is_view(graph: GraphView, node: Node) -> bool:
    """Whether a node is known to be a view of its operand: a reshape may copy."""
    if graph.effects.of(node).is_view:
        return True
    bound = graph.bind(node)
    return isinstance(bound, Bound) and is_row_major(value_of(bound["self"]))


@remove_reshape_pass.example
def two_reshapes(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    return x.reshape(2, -1).reshape(2, 2, 6) + 1


@remove_reshape_pass.example
def there_and_back(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    y: torch.Tensor = x.flatten(1).unsqueeze(0).squeeze(0).unflatten(1, (3, 4))
    return y.relu()


@remove_reshape_pass.example
def permutations(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    return x.transpose(1, 2).permute(0, 2, 1).view(6, 4) * 2


@remove_reshape_pass.example
def views_that_are_returned(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    return x.view(6, 4).view(24)


@remove_reshape_pass.refuses("a reshape in it is used elsewhere")
def middle_with_another_user(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    y = x.reshape(6, 4)
    return y.reshape(24).sum() + y


@remove_reshape_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(4, 4)) -> torch.Tensor:
    y = x.sin()
    z = y.t().reshape(2, 8)
    y.zero_()
    return z.reshape(16)


@remove_reshape_pass.refuses("no shorter chain")
def a_transposition_between(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    return x.reshape(6, 4).t().reshape(3, 8) + 1


@remove_reshape_pass.refuses("a separate output")
def it_would_be_the_input(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.view(6).view(2, 3)
