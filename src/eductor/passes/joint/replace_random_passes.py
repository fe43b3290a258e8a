"""Draws one seed tensor per device, and computes every random tensor from its seed."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from eductor.graph import Bound, GraphView, No, Rewriter, value_of
from eductor.passes.joint.seeded.draw import Draw, Seeds, physical_order, source_of_sizes
from eductor.passes.joint.seeded.recipes import OPERATORS, may_be_seeded, replace
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten


def _unless_eager(context: Context) -> Literal[True] | No:
    return No("the option fallback_random asks for eager's random numbers") if context.options.fallback_random else True


@graph_pass(stage="joint", numerics="redraws", when=_unless_eager)
def replace_random_passes(graph: GraphView, rewrite: Rewriter) -> None:
    """Draws one seed tensor per device, and computes every random tensor from its seed.

    A mask that the backward recomputes is the same mask. A tensor of probabilities is not checked: one below 0 or above
    1, for which eager raises, counts as 0 or 1. The option `fallback_random` of a compile keeps eager's draws.

    It pays on an engine that fuses: one launch per device, not per tensor, and the draw fuses into its consumers.
    """
    seeds, chosen = Seeds(), list[Node]()
    for node in graph.find(*OPERATORS):
        draw = _draw_of(graph, rewrite, seeds, node)
        if isinstance(draw, No):
            rewrite.reject(draw, node)
        else:
            seeds.reserve(draw)
            chosen.append(node)
    for node in graph.candidates(chosen):
        draw = _draw_of(graph, rewrite, seeds, node)  # again: its operands may have been replaced
        assert isinstance(draw, Draw)
        replace(draw)


def _draw_of(graph: GraphView, rewrite: Rewriter, seeds: Seeds, node: Node) -> Draw | No:
    """A random call that can be computed from a seed, or why it cannot."""
    bound, value = graph.bind(node), value_of(node)
    if not isinstance(bound, Bound):
        return bound
    if bound.packet is aten.native_dropout and isinstance(value, (tuple, list)):
        _, value = value  # the mask
    if not isinstance(value, torch.Tensor):
        return No("its shape is not known")
    if not (verdict := may_be_seeded(bound, node, value)):
        return verdict
    order, sizes = physical_order(value), source_of_sizes(bound, value)
    if order is None:
        return No("its strides are not those of a permuted dense tensor")
    if sizes is None:
        return No("its sizes are symbolic, and no operand has them")
    return Draw(rewrite, node, bound, value, order, sizes, seeds)


@replace_random_passes.example
def noise(x: torch.Tensor = f32(64, 64)) -> torch.Tensor:
    return x + torch.rand_like(x)


@replace_random_passes.example
def two_draws(x: torch.Tensor = f32(64, 64)) -> torch.Tensor:
    return x * torch.randn(64, 64) + torch.randn_like(x.t()).t()


@replace_random_passes.example
def dropout(x: torch.Tensor = f32(64, 64)) -> torch.Tensor:
    return F.dropout(x, 0.25)


@replace_random_passes.example
def coins_and_dice(x: torch.Tensor = f32(64, 64)) -> torch.Tensor:
    return torch.bernoulli(x.sigmoid()) * torch.randint(1, 7, (64, 64))


def _give_a_generator(module: GraphModule) -> None:
    """Inserts a generator by hand, since not every torch traces a call with one."""
    (node,) = module.graph.find_nodes(op="call_function", target=aten.rand.default)
    module.generator = own = torch.Generator()  # type: ignore[assignment]
    with module.graph.inserting_before(node):
        generator = module.graph.create_node("get_attr", "generator")
    generator.meta["val"] = own
    node.target = aten.rand.generator
    node.kwargs = {**node.kwargs, "generator": generator}


@replace_random_passes.refuses("an explicit generator", prepare=_give_a_generator)
def own_generator(x: torch.Tensor = f32(8, 8)) -> torch.Tensor:
    return x + torch.rand(8, 8)
