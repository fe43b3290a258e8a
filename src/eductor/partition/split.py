"""Splits a joint graph: the forward saves what the backward needs.

What a value is a view of is saved, and the view is made again: it costs nothing, it keeps one piece of memory alive
instead of two names for it, and autograd still notices when somebody writes to a saved input. Values of a checkpointed
region are computed again in the backward, right before they are needed; random numbers are never drawn twice.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

import torch
from torch.fx import Graph, GraphModule, Node

from eductor import compat
from eductor.autograd.handoff import Parts, Saved
from eductor.autograd.joint import Joint
from eductor.errors import Unsupported
from eductor.graph.meta import is_backward, output_of, value_of
from eductor.graph.node_effects import effect_of
from eductor.graph.order import ancestors


def partition_fn(joint: Joint) -> Parts:
    """Parts a joint graph by the rule: save what the backward needs."""
    split = _Split(joint)
    return split.parts() if joint.tangents else Parts(split.forward_graph([]), None)


class _Split:
    """One joint graph, its nodes sorted into those of the forward and those of the backward."""

    def __init__(self, joint: Joint) -> None:
        self._joint = joint
        self._graph = joint.module.graph
        self._nodes = [n for n in self._graph.nodes if n.op != "output"]
        count = len(joint.analysis.returns)
        outputs = output_of(joint.module)
        self._returns, self._gradients = outputs[:count], outputs[count:]
        self._primals = dict.fromkeys(joint.primals)
        self._tangents = self._graph.find_nodes(op="placeholder")[len(self._primals) :]
        kept = [n for n in self._nodes if n.op == "call_function" and not effect_of(n).removable]
        self._forward_acts = [n for n in kept if not is_backward(n)]
        self._backward_acts = [n for n in kept if is_backward(n)]
        written = {n.args[0] for n in self._backward_acts if n.target is torch.ops.aten.copy_.default}
        self._destinations = [p for p in self._primals if p in written]
        """Inputs that the backward writes to."""
        self._forward = ancestors((*self._returns, *self._forward_acts))
        self._late = self._sort()

    def _sort(self) -> set[Node]:
        """What runs in the backward: what depends on a gradient, or was made by the backward and serves it alone."""
        needed = ancestors((*self._gradients, *self._backward_acts))
        late = set(self._tangents)
        for node in self._nodes:
            if node in self._forward or node not in needed or node in self._primals:
                continue
            if any(operand in late for operand in node.all_input_nodes) or (
                is_backward(node) and not _is_size(node) and node.op == "call_function"
            ):
                late.add(node)
        return late

    def parts(self) -> Parts:
        saved = self._choose()
        sizes = [n for n in saved if _is_size(n)]
        tensors = [n for n in saved if not _is_size(n)]
        sizes = [*self._unbound(sizes, (*tensors, *self._tangents)), *sizes]
        mutable = {n for i, n in enumerate(self._primals) if i in self._joint.overwritten}
        forward, places = self._forward_with([*sizes, *tensors], mutable)
        backward = self._backward_graph([*sizes, *tensors])
        destinations = tuple(i for i, n in enumerate(self._primals) if n in self._destinations)
        return Parts(forward, backward, tuple(places[: len(sizes)]), tuple(places[len(sizes) :]), destinations)

    def _choose(self) -> list[Node]:
        """The values to save, in the order of the graph; the backward makes the others again that it needs."""
        saved: set[Node] = set()
        again: set[Node] = set()
        pending = [o for n in self._late for o in _read_by(n)]
        pending += [n for n in (*self._gradients, *self._backward_acts) if isinstance(n, Node)]
        while pending:
            node = pending.pop()
            if node in self._late or node in saved or node in again:
                continue
            if self._is_made_again(node):
                again.add(node)
                pending.extend(node.all_input_nodes)
            elif isinstance(value_of(node), (tuple, list)):
                raise Unsupported(f"{node.name}, a tuple that the backward needs whole")
            else:
                saved.add(node)
        return [n for n in self._nodes if n in saved]

    def _is_made_again(self, node: Node) -> bool:
        if node.op == "get_attr":
            return True
        if node.op != "call_function" or _is_size(node):
            return False
        if node.target is operator.getitem:
            return self._is_made_again(node.all_input_nodes[0])
        return effect_of(node).is_view or (compat.wants_recompute(node) and _may_repeat(node))

    def _unbound(self, sizes: Sequence[Node], tensors: Iterable[Node]) -> list[Node]:
        """Sizes that shapes of the backward's inputs speak of and no saved size gives."""
        known = {compat.symbol_of(value_of(n)) for n in sizes}
        homes = {compat.symbol_of(value_of(n)): n for n in reversed(self._nodes) if _is_size(n) and n not in self._late}
        missing = []
        for node in (*sizes, *tensors):
            for symbol in compat.symbols_of(value_of(node)):
                if symbol not in known and symbol in homes:
                    known.add(symbol)
                    missing.append(homes[symbol])
        return missing

    def _forward_with(self, saved: Sequence[Node], mutable: set[Node]) -> tuple[GraphModule, list[Saved]]:
        """The forward graph that returns these values too, and where each of them is found."""
        inputs = {n: i for i, n in enumerate(self._primals)}
        returned = {n: k for k, n in reversed(list(enumerate(self._returns))) if isinstance(n, Node)}
        places: list[Saved] = []
        extra: list[Node] = []
        for node in saved:
            if node in inputs and node not in mutable:
                places.append(Saved("input", inputs[node]))
            elif node in returned and node not in inputs:
                places.append(Saved("output", returned[node]))
            else:
                places.append(Saved("output", len(self._returns) + len(extra)))
                extra.append(node)
        return self.forward_graph(extra), places

    def forward_graph(self, extra: Sequence[Node]) -> GraphModule:
        """The forward with more outputs; an input that it overwrites is returned as a copy."""
        graph, copies = Graph(), dict[Node, Node]()
        wanted = ancestors((*self._returns, *self._forward_acts, *extra))
        for node in self._nodes:
            if node in wanted or node in self._primals:
                copies[node] = graph.node_copy(node, lambda n: copies[n])
        outputs = [copies[n] if isinstance(n, Node) else n for n in self._returns]
        first_write = next((n for n in graph.nodes if n.target is torch.ops.aten.copy_.default), None)
        for node in extra:
            copy = copies[node]
            if node.op == "placeholder":
                with graph.inserting_before(first_write) if first_write is not None else nullcontext():
                    copy = graph.call_function(torch.ops.aten.clone.default, (copies[node],))
                copy.meta = dict(node.meta)
            outputs.append(copy)
        graph.output(tuple(outputs))
        return compat.lazy_module(self._joint.module, graph)

    def _backward_graph(self, saved: Sequence[Node]) -> GraphModule:
        graph, copies = Graph(), dict[Node, Node]()
        places: dict[Node, Node] = {}
        for known, nodes in ((copies, saved), (places, self._destinations), (copies, self._tangents)):
            for node in nodes:
                name = node.name if known is copies else f"{node.name}_written"
                known[node] = graph.placeholder(name)
                known[node].meta = dict(node.meta)

        def emit(node: Node) -> Node:
            pending = [node]
            while pending:
                top = pending[-1]
                missing = [o for o in _read_by(top) if o not in copies]
                if missing:
                    pending.extend(reversed(missing))
                    continue
                pending.pop()
                if top not in copies:
                    sources = {**copies, **places} if top.target is torch.ops.aten.copy_.default else copies
                    copies[top] = graph.node_copy(top, lambda n: sources[n])  # noqa: B023
            return copies[node]

        for node in self._nodes:
            if node in self._late and node not in copies:
                emit(node)
        graph.output(tuple(emit(n) for n in self._gradients))
        return compat.lazy_module(self._joint.module, graph)


def _read_by(node: Node) -> list[Node]:
    """Operands whose values a node reads; a write-back reads what it writes, not what it writes to."""
    if node.target is torch.ops.aten.copy_.default:
        return [node.args[1]]  # type: ignore[list-item]
    return node.all_input_nodes


def _is_size(node: Node) -> bool:
    return isinstance(value_of(node), (int, torch.SymInt, torch.SymFloat, torch.SymBool))


def _may_repeat(node: Node) -> bool:
    """Whether computing a node twice gives the same value twice and does nothing else."""
    effect = effect_of(node)
    return not (effect.writes or effect.barrier or effect.random)
