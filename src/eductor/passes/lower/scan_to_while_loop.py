"""Turns scans and maps into while loops, the one loop that Inductor lowers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.compat import HigherOrderOperator, make_fx
from eductor.graph import GraphView, Rewriter, value_of
from eductor.graph.snapshot import attribute_or_none
from eductor.graph.values.meta import set_value
from eductor.graph.wrappers.copies import as_arguments, hand_out
from eductor.passes.lower.loop_graphs import Operands, body_graph, condition_graph
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="lower", numerics="exact")
def scan_to_while_loop(graph: GraphView, rewrite: Rewriter) -> None:
    """Turns scans and maps into while loops, the one loop that Inductor lowers.

    A counter is carried along: each step reads its slices of the operands, and writes its slices of the results, with it.

    It pays always: Inductor fails without it.
    """
    for node in graph.candidates([n for n in graph.nodes if isinstance(n.target, HigherOrderOperator)]):
        name = node.target.name()  # type: ignore[union-attr]
        if name == "scan":  # (step, init, xs, others) returns the last carries, then the other results, stacked
            _loop(rewrite, node, *node.args)  # type: ignore[arg-type]
        elif name == "map_impl":  # (step, xs, others) is a scan that carries nothing
            step, xs, others = node.args
            _loop(rewrite, node, step, (), xs, others)  # type: ignore[arg-type]
        elif name == "while_loop":
            rewrite.reject("it is a while loop already", node)


def _loop(
    rewrite: Rewriter, node: Node, step: Node, init: Sequence[Node], xs: Sequence[Node], others: Sequence[Any]
) -> None:
    results = value_of(node)
    counters = _counters(rewrite, node, value_of(xs[0]).device)
    carries = [rewrite.insert(aten.clone.default, x, before=node, like=node) for x in init]
    stacks = [_stack(rewrite, node, value) for value in results[len(init) :] if isinstance(value, torch.Tensor)]
    passed = [x for x in others if isinstance(x, Node)]
    operands = Operands(*([value_of(x) for x in group] for group in (counters, carries, stacks, xs, passed)))
    inner: GraphModule = attribute_or_none(rewrite.view.module, str(step.target))
    graphs = condition_graph(operands, node), body_graph(inner, operands, others, node)
    loop = _insert(rewrite, node, graphs, (*counters, *carries, *stacks), (*xs, *passed))
    places = range(len(counters), len(value_of(loop)))
    finals = iter([rewrite.insert(operator.getitem, loop, i, before=node, like=node) for i in places])
    hand_out(rewrite, node, [next(finals) if isinstance(value, torch.Tensor) else value for value in results])


def _counters(rewrite: Rewriter, node: Node, device: torch.device) -> list[Node]:
    """A counter in the host's memory, which decides whether to go on, and on another device one that indexes there.

    With one counter, each step would wait for the device.
    """
    kind = {"dtype": torch.int64}
    return [
        rewrite.insert(aten.full.default, [], 0, before=node, like=node, device=place, **kind)
        for place in dict.fromkeys((torch.device("cpu"), device))
    ]


def _stack(rewrite: Rewriter, node: Node, value: torch.Tensor) -> Node:
    """Memory for the stacked results of the steps, in their order."""
    sizes = as_arguments(rewrite, value.shape, node)
    kind = {"dtype": value.dtype, "device": value.device}
    return rewrite.insert(aten.empty.memory_format, sizes, before=node, like=node, **kind)


def _insert(
    rewrite: Rewriter, node: Node, graphs: Sequence[GraphModule], carried: tuple[Any, ...], passed: tuple[Any, ...]
) -> Node:
    attributes = [rewrite.attribute(graph, before=node) for graph in graphs]
    loop = rewrite.insert(torch.ops.higher_order.while_loop, *attributes, carried, passed, before=node, like=node)
    fake = value_of(carried[0]).fake_mode
    with fake:
        set_value(loop, tuple(torch.empty_like(value_of(x)) for x in carried))
    return loop


@scan_to_while_loop.example
def running_sum(x: torch.Tensor = f32(5, 3), start: torch.Tensor = f32(3)) -> tuple[torch.Tensor, torch.Tensor]:
    step = make_fx(lambda carry, row: [carry + row, carry * row])(start, start)
    return torch.ops.higher_order.scan(step, [start], [x], ())  # type: ignore[no-any-return]


@scan_to_while_loop.example
def row_by_row(x: torch.Tensor = f32(4, 3)) -> tuple[torch.Tensor]:
    return torch.ops.higher_order.map_impl(lambda row: (row.sin() * row.sum(),), (x,), ())  # type: ignore[no-any-return]


@scan_to_while_loop.refuses("a while loop already")
def while_loop(x: torch.Tensor = f32(3)) -> tuple[torch.Tensor]:
    return torch.ops.higher_order.while_loop(lambda x: x.sum() < 100, lambda x: (x.exp(),), (x,), ())  # type: ignore[no-any-return]
