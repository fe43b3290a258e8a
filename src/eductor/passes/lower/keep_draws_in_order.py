"""Marks the order of random draws, which take numbers from one generator."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from eductor import ops
from eductor.compat import OpOverload
from eductor.graph import Bound, GraphView, Rewriter, bind, known_equal, value_of
from eductor.graph.snapshot import attribute_or_none
from eductor.pipeline.base import f32, graph_pass

drawn_in_order = ops.random.drawn_in_order.default


@graph_pass(stage="lower", numerics="exact")
def keep_draws_in_order(graph: GraphView, rewrite: Rewriter) -> None:
    """Marks the order of random draws, which take numbers from one generator.

    Inductor's scheduler orders kernels by their data alone. The marker after the last draw gives it the rest; the engine
    lowers it, and Eductor's seeded operators.

    It pays always: without it, other numbers than eager's are drawn.
    """
    draws = []
    for node in graph.nodes:
        if node.op == "call_function":
            if node.target is drawn_in_order:
                return
            if _draws(graph.module, node):
                draws.append(node)
    if len(draws) == 1:
        rewrite.reject("it is the only draw", draws[0])
    elif draws:
        end = draws[-1].next
        rewrite.insert(drawn_in_order, [_tensor(rewrite, n, end) for n in draws], before=end, like=draws[-1])


def _draws(module: GraphModule, node: Node) -> bool:
    """Whether a node takes numbers from the default generator, by itself or in a subgraph."""
    target = node.target
    if isinstance(target, OpOverload):
        return torch.Tag.nondeterministic_seeded in target.tags and not drops_nothing(node)
    if target is torch.ops.higher_order.run_and_save_rng_state:
        return True
    bodies = (attribute_or_none(module, str(a.target)) for a in node.all_input_nodes if a.op == "get_attr")
    return any(
        _draws(body, inner)
        for body in bodies
        if isinstance(body, GraphModule)
        for inner in body.graph.nodes
        if inner.op == "call_function"
    )


def drops_nothing(node: Node) -> bool:
    """Attention without dropout carries the tag, and draws nothing."""
    bound = bind(node)
    return isinstance(bound, Bound) and known_equal(bound.get("dropout_p"), 0.0)


def _tensor(rewrite: Rewriter, node: Node, before: Node) -> Node:
    """A draw, or the first tensor among its results."""
    value = value_of(node)
    if not isinstance(value, (tuple, list)):
        return node
    first = next(i for i, one in enumerate(value) if isinstance(one, torch.Tensor))
    return rewrite.insert(operator.getitem, node, first, before=before, like=node)


@keep_draws_in_order.example
def two_draws(x: torch.Tensor = f32(3)) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.rand_like(x)
    return torch.bernoulli(torch.full_like(x, 0.5)) * x, noise + x


@keep_draws_in_order.refuses("the only draw")
def one_draw(x: torch.Tensor = f32(3)) -> torch.Tensor:
    return torch.rand_like(x) + x
