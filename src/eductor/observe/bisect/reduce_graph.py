"""Reduces a graph on which a pass fails, as long as the pass still fails in the same way."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from eductor.graph import effect_of, value_of
from eductor.graph.effects.order import sort_in_place
from eductor.graph.snapshot import copy_of
from eductor.verification.execution import RunMode, observe

Fails = Callable[[GraphModule, Sequence[Any]], bool]
TRIALS = 400
"""The most reduced graphs that are tried."""


class Reduction:
    """A graph and values for its inputs, reduced step by step."""

    def __init__(self, module: GraphModule, inputs: Sequence[Any], fails: Fails) -> None:
        self.module = GraphModule(module, copy_of(module.graph))
        placeholders = module.graph.find_nodes(op="placeholder")
        self._values = dict(zip((p.name for p in placeholders), inputs, strict=True))
        self._values |= _values_of(module, inputs)
        self._fails = fails
        self.trials = 0

    @property
    def inputs(self) -> list[Any]:
        """A value for each input of the current graph."""
        return [self._values[p.name] for p in self.module.graph.find_nodes(op="placeholder")]

    def run(self, first_outputs: Sequence[str] = ()) -> None:
        """Keeps one output, cuts off the nodes before the fault, and removes unneeded nodes one by one.

        `first_outputs` are nodes that are likely to show the fault when returned alone.
        """
        self._narrow_outputs(first_outputs)
        self._cut_back()
        self._cut_front()
        size = -1
        while size != len(self.module.graph.nodes) and self.trials < TRIALS:
            size = len(self.module.graph.nodes)
            for name in [n.name for n in reversed(self.module.graph.nodes) if n.op not in ("placeholder", "output")]:
                self._try(_erase, name) or self._try(_make_inputs, [name])

    def _narrow_outputs(self, likely: Sequence[str]) -> None:
        names = [n.name for n in self.module.graph.output_node().all_input_nodes]
        if any(self._try(_return_only, name) for name in [*likely, *names]):
            return
        self._drop_outputs()

    def _drop_outputs(self) -> None:
        """Drops ever smaller groups of outputs, for a fault that needs several of them."""
        piece = len(_returned(self.module.graph)) // 2
        while piece:
            at = 0
            while at < len(_returned(self.module.graph)):
                if not self._try(_drop_outputs, at, at + piece):
                    at += piece
            piece //= 2

    def _cut_back(self) -> None:
        """Finds the earliest node to return, by binary search: the fault may be far before the output."""
        names = [n.name for n in self.module.graph.nodes if n.op not in ("placeholder", "output")]
        bisect_left(names[:-1], True, key=lambda name: self._try(_return_only, name))

    def _cut_front(self) -> None:
        """Turns as many leading nodes as possible into inputs, by binary search."""
        names = [n.name for n in self.module.graph.nodes if n.op not in ("placeholder", "output")]
        bisect_left(range(1, len(names) + 1), True, key=lambda count: not self._try(_make_inputs, names[:count]))

    def _try(self, edit: Callable[..., bool], *args: Any) -> bool:
        """Keeps an edit if the pass still fails, with dead calls removed, or else with them, as it may fail on those."""
        graph = copy_of(self.module.graph)
        if not edit(graph, *args):
            return False
        swept = copy_of(graph)
        _sweep(swept, calls=True)
        _sweep(graph, calls=False)
        return self._take(swept) or (len(swept.nodes) < len(graph.nodes) and self._take(graph))

    def _take(self, graph: Graph) -> bool:
        self.trials += 1
        smaller = GraphModule(self.module, graph)
        given = [self._values.get(p.name) for p in graph.find_nodes(op="placeholder")]
        if self.trials > TRIALS or any(x is None for x in given) or not self._fails(smaller, given):
            return False
        self.module = smaller
        return True


def _values_of(module: GraphModule, inputs: Sequence[Any]) -> dict[str, Any]:
    """The value of each node, so that it can become an input; empty if the graph cannot run."""
    in_order = GraphModule(module, copy_of(module.graph))
    sort_in_place(in_order.graph)
    try:
        seen = observe(in_order, inputs, RunMode(captured=True), keep=True).values
    except Exception:
        return {}
    nodes = {n.name: n for n in module.graph.nodes}
    return {name: _as_leaf(value, value_of(nodes[name])) for name, value in seen.items()}


def _as_leaf(value: Any, fake: Any) -> Any:
    differentiable = isinstance(value, torch.Tensor) and isinstance(fake, torch.Tensor) and fake.requires_grad
    return value.requires_grad_() if differentiable else value


def _named(graph: Graph, name: str) -> Node | None:
    return next((n for n in graph.nodes if n.name == name), None)


def _return_only(graph: Graph, name: str) -> bool:
    """Makes a node the only output; like all edits it returns whether that changes the graph."""
    node, output = _named(graph, name), graph.output_node()
    if node is None or node.op == "output" or not isinstance(value_of(node), torch.Tensor):
        return False
    if output.args == ((node,),):
        return False
    output.args = ((node,),)
    return True


def _returned(graph: Graph) -> tuple[Any, ...]:
    returned = graph.output_node().args[0]
    return tuple(returned) if isinstance(returned, (list, tuple)) else (returned,)


def _drop_outputs(graph: Graph, start: int, end: int) -> bool:
    """Drops a range of outputs."""
    returned = _returned(graph)
    kept = returned[:start] + returned[end:]
    graph.output_node().args = (kept,)
    return bool(kept)


def _make_inputs(graph: Graph, names: Sequence[str]) -> bool:
    """Turns these nodes into inputs."""
    wanted, first = set(names), next(iter(graph.nodes))
    cut = [n for n in graph.nodes if n.name in wanted and n.users and isinstance(value_of(n), _CAN_BE_INPUT)]
    for node in cut:
        node.op, node.target, node.args, node.kwargs = "placeholder", node.name, (), {}
        if node is not first:
            first.prepend(node)
    return bool(cut)


_CAN_BE_INPUT = (torch.Tensor, int, float, torch.SymInt, torch.SymFloat)


def _erase(graph: Graph, name: str) -> bool:
    """Erases a dead node."""
    node = _named(graph, name)
    if node is None or node.users:
        return False
    graph.erase_node(node)
    return True


def _sweep(graph: Graph, *, calls: bool) -> None:
    """Removes dead inputs, and with `calls` dead calls as well."""
    for node in reversed(list(graph.nodes)):
        is_needless = node.op == "placeholder" or (calls and effect_of(node).removable)
        if node.op != "output" and not node.users and is_needless:
            graph.erase_node(node)
