"""Erases dead nodes, except those with effects: writes, asserts, random draws, collectives."""

from __future__ import annotations

from typing import Literal

import torch
from torch.fx import GraphModule, Node

from eductor.graph import GraphView, No, Rewriter
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="exact")
def eliminate_dead_code(graph: GraphView, rewrite: Rewriter) -> None:
    """Erases dead nodes, except those with effects: writes, asserts, random draws, collectives.

    It pays always: unused values are not computed.
    """
    for node in reversed(list(graph.nodes)):
        if node.users or node.op in ("placeholder", "output"):
            continue
        if verdict := _may_erase(graph, node):
            rewrite.erase(node)
        else:
            rewrite.reject(verdict, node)


def _may_erase(graph: GraphView, node: Node) -> Literal[True] | No:
    effect = graph.effects.of(node)
    if effect.writes:
        return No("it writes")
    if effect.random:
        return No("it draws random numbers, and later draws would change")
    if effect.barrier or effect.kept:
        return No(f"it is {effect.barrier or 'a check or an effect'}")
    return No("torch calls it impure") if node.is_impure() else True


def _forget_the_sine(module: GraphModule) -> None:
    """Removes the only user of a value, as a rewrite may; tracing leaves no dead code."""
    output = module.graph.output_node()
    used = output.args[0]
    assert isinstance(used, tuple)
    output.args = (used[:1],)


@eliminate_dead_code.example(prepare=_forget_the_sine)
def value_without_users(x: torch.Tensor = f32(2, 3)) -> tuple[torch.Tensor, ...]:
    return x + 1, x.sin().cos()


@eliminate_dead_code.refuses("draws random numbers", prepare=_forget_the_sine)
def draw_without_users(x: torch.Tensor = f32(2, 3)) -> tuple[torch.Tensor, ...]:
    return x + 1, torch.rand_like(x)


@eliminate_dead_code.refuses("a check")
def assertion(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    aten._assert_async.msg((x < 100).all(), "too large")
    return x + 1
