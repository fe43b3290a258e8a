"""Splits a captured graph into a prologue that runs once and the rest that runs in each call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from eductor.compat import autocast_step
from eductor.graph.effects.graph_effects import Effects
from eductor.graph.reading.static import is_packed, is_static, mark_static, uncounted_of
from eductor.graph.snapshot import copy_of
from eductor.graph.values.meta import output_of, requires_grad, set_value, tensor_of, value_of
from eductor.graph.values.module_tensors import attribute_at, tensors_of
from eductor.packing.packed_values import PackedValues

Source = int | torch.Tensor
"""The index of an input, or a tensor that the module holds."""


def can_pack(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether all parameters of a graph have version counters: those made in inference mode have none."""
    placeholders = zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True)
    given = [x for node, x in placeholders if is_static(node)]
    return not any(isinstance(x, torch.Tensor) and x.is_inference() for x in (*tensors_of(module).values(), *given))


@dataclass(frozen=True, slots=True)
class Hoisted:
    """A graph that takes packed values as additional inputs, and the prologue that computes them."""

    original: GraphModule
    module: GraphModule
    kept: PackedValues
    sources: tuple[Source, ...]
    written: tuple[Source, ...]
    """What the graph writes: must not share memory with the sources, as packed values would not see the write."""

    @property
    def prologue(self) -> GraphModule:
        return self.kept.compute

    @property
    def count(self) -> int:
        """How many values are packed."""
        return len(output_of(self.prologue))

    def inputs(self, given: Sequence[Any]) -> list[Any]:
        """The inputs of a call, and the packed values."""
        return [*given, *self.kept(_pick(self.sources, given))]

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function like `module` as one like the original graph."""
        kept, sources = self.kept, self.sources

        def call(*args: Any) -> Any:
            return run(*args, *kept(_pick(sources, args)))

        def watching(*args: Any) -> Any:
            return self.original(*args) if self.is_overwritten(args) else call(*args)

        return watching if self.written else call

    def is_overwritten(self, inputs: Sequence[Any]) -> bool:
        """Whether the graph writes memory that the packed values are computed from."""
        written = {id(storage): storage for x in _pick(self.written, inputs) for storage in (x.untyped_storage(),)}
        return bool(written) and any(id(x.untyped_storage()) in written for x in _pick(self.sources, inputs))


def hoist(module: GraphModule, inputs: Sequence[Any]) -> Hoisted | None:
    """Moves the marked values of a graph into a prologue; None if none can move."""
    marked = [node for node in module.graph.nodes if is_packed(node)]
    if not marked:
        return None
    search = _Search(module.graph)
    moved = search.movable(marked)
    results = [node for node in marked if node in moved and any(user not in moved for user in node.users)]
    if not results:
        return None
    prologue, leaves = _prologue(module, moved, results)
    uncounted = {leaf for node in marked if node in moved for leaf in uncounted_of(node)}
    hoisted = Hoisted(
        module,
        _rest(module, moved, results),
        PackedValues(prologue, [i for i, leaf in enumerate(leaves) if leaf in uncounted]),
        _sources(module, leaves),
        _sources(module, search.written),
    )
    return None if hoisted.is_overwritten(inputs) else hoisted


def with_prologue(
    module: GraphModule,
    prologue: GraphModule,
    uncounted: Sequence[int],
    sources: tuple[Source, ...],
    written: tuple[Source, ...],
) -> Hoisted:
    """A graph with a known prologue, whose results it takes as additional inputs and does not use."""
    graph = _copied(module)
    start = next(node for node in graph.nodes if node.op != "placeholder")
    for result in output_of(prologue):
        _add_packed(graph, result, before=start)
    whole = GraphModule(module, graph)
    whole.meta.update(module.meta)
    return Hoisted(module, whole, PackedValues(prologue, uncounted), sources, written)


class _Search:
    """Finds what can be computed before the graph. Assumes that inputs do not alias, which each call checks."""

    def __init__(self, graph: Graph) -> None:
        self._effects = effects = Effects(graph, inputs_distinct=True)
        self._places = places = {place for node in graph.nodes for place in effects.writes(node)}
        self._opaque = next((node for node in graph.nodes if effects.of(node).opaque), None)
        self._in_autocast = _in_autocast(graph)
        self.written = [
            node
            for node in graph.nodes
            if node.op in ("placeholder", "get_attr") and tensor_of(node) is not None and effects.place(node) in places
        ]

    def movable(self, marked: Iterable[Node]) -> set[Node]:
        """The marked values that can move, with all nodes that they are computed from."""
        moved: set[Node] = set()
        for node in marked:
            # A value that escapes must be recomputed in each call, as its holder may write it.
            if tensor_of(node) is not None and not requires_grad(value_of(node)) and not self._effects.escapes(node):
                moved |= self._computed_with(node, moved)
        return moved

    def _computed_with(self, node: Node, known: Collection[Node]) -> set[Node]:
        """A node and the nodes it is computed from; empty if one of them is not static or may not move."""
        found, pending = {node}, [node]
        while pending:
            current = pending.pop()
            if not self._may_go(current):
                return set()
            for operand in current.all_input_nodes:
                if operand in found or operand in known:
                    continue
                if not is_static(operand):
                    found.add(operand)
                    pending.append(operand)
                elif self._is_written(operand):
                    return set()
        return found

    def _is_written(self, node: Node) -> bool:
        return self._effects.place(node) in self._places

    def _may_go(self, node: Node) -> bool:
        is_call = node.op in ("call_function", "call_method")
        after_opaque = self._opaque is not None and self._opaque < node
        has_effects = not self._effects.of(node).removable or self._is_written(node)
        return is_call and not after_opaque and node not in self._in_autocast and not has_effects


def _in_autocast(graph: Graph) -> set[Node]:
    """The nodes inside an autocast region of the graph."""
    found, depth = set(), 0
    for node in graph.nodes:
        depth += autocast_step(node.target)
        if depth:
            found.add(node)
    return found


def _prologue(module: GraphModule, moved: Collection[Node], results: Sequence[Node]) -> tuple[GraphModule, list[Node]]:
    """The graph of the moved nodes, and the inputs and attributes that it takes."""
    graph = Graph()
    ordered = [node for node in module.graph.nodes if node in moved]
    leaves = list(dict.fromkeys(leaf for node in ordered for leaf in node.all_input_nodes if leaf not in moved))
    copies = {leaf: graph.placeholder(leaf.name) for leaf in leaves}
    for node in ordered:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    return GraphModule({}, graph), leaves


def _rest(module: GraphModule, moved: Collection[Node], results: Sequence[Node]) -> GraphModule:
    """A copy of the graph without the moved nodes; the original keeps Dynamo's calling convention."""
    graph = _copied(module)
    copies = dict(zip(module.graph.nodes, graph.nodes, strict=True))
    start = next(node for node in graph.nodes if node.op != "placeholder")
    for result in results:
        copies[result].replace_all_uses_with(_add_packed(graph, result, before=start))
    for node in reversed(list(module.graph.nodes)):
        copy = copies[node]
        if (node in moved or node.op == "get_attr") and not copy.users:
            graph.erase_node(copy)
    rest = GraphModule(module, graph)
    rest.meta.update(module.meta)
    return rest


def _copied(module: GraphModule) -> Graph:
    graph = copy_of(module.graph)
    for node, copy in zip(module.graph.nodes, graph.nodes, strict=True):
        if node.op == "placeholder":
            copy._dynamo_source = getattr(node, "_dynamo_source", None)  # the source of the symbols of its sizes
    return graph


def _add_packed(graph: Graph, result: Node, before: Node) -> Node:
    with graph.inserting_before(before):
        given = graph.placeholder(f"packed_{result.name}")
    set_value(given, value_of(result))
    mark_static(given)
    return given


def _sources(module: GraphModule, nodes: Sequence[Node]) -> tuple[Source, ...]:
    places = {node: i for i, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    return tuple(places[n] if n in places else attribute_at(module, str(n.target)) for n in nodes)


def _pick(sources: Sequence[Source], inputs: Sequence[Any]) -> list[torch.Tensor]:
    return [inputs[s] if isinstance(s, int) else s for s in sources]
