"""Stamps repeated layers: makes the joint graph of a captured graph from that of the shortened one.

The forward of the third layer and the backward of the second are copied for all layers that were left out. Each copy reads
the values of its own neighbours, and has its own lines, modules and sequence numbers. It shares its fake value, as
decompositions of equal operators do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from eductor import compat
from eductor.autograd.captured import Captured, Fakes
from eductor.autograd.layer_blocks import FORWARD, INPUT, Block, Blocks, Place
from eductor.autograd.provenance import INHERITED, record_inputs
from eductor.autograd.shortened import KEPT, Shortened
from eductor.graph.no import No
from eductor.graph.values.meta import CAME_FROM, output_of
from eductor.program.joint import Analysis, Joint


def stamped(short: Shortened, traced: Joint, captured: Captured, fakes: Fakes) -> Joint | No:
    """The joint graph of the whole captured graph."""
    if traced.written or traced.views != (None, None) or any(r.source == "input" for r in traced.analysis.returns):
        return No("the graph writes inputs, or returns views")
    blocks = Blocks(traced.module.graph, short)
    periodic = blocks.are_periodic()
    if isinstance(periodic, No):
        return periodic
    results = list(output_of(traced.module))
    count = len(traced.analysis.returns)
    gradients = {short.kept[i]: node for i, node in zip(traced.gradients, results[count:], strict=True)}
    own = {i for layer in short.inputs for i in layer}
    if not blocks.are_at_ends([*results[:count], *(node for i, node in gradients.items() if i not in own)]):
        return No("a result is a value of a layer in the middle")
    second, third = ([blocks.seen(gradients.get(i), k) for i in short.inputs[k]] for k in (1, 2))
    if second != third:
        return No("the gradients of a layer's inputs are computed in another way than in the next layer")
    stamp = _Stamp(short, traced, blocks, captured, fakes)
    order = stamp.run(results[:count], gradients)
    captured.spec = short.captured.spec
    static = captured.static_inputs()
    return replace(
        traced,
        analysis=_analysis(short, traced.analysis, len(fakes.values)),
        gradients=order,
        static=static,
        module=compat.lazy_module(traced.module, stamp.graph),
        parameters=frozenset(i for i in static if isinstance(fakes.values[i], torch.nn.Parameter)),
    )


def _analysis(short: Shortened, analysis: Analysis, count: int) -> Analysis:
    """The analysis with the inputs of all layers."""
    seen = dict(zip(short.kept, analysis.inputs, strict=True))
    for layer in short.inputs:
        seen |= {i: seen[like] for i, like in zip(layer, short.inputs[1], strict=True) if i not in seen}
    outputs = (replace(x, index=short.kept[x.index]) if x.kind == "input" else x for x in analysis.outputs)
    return replace(analysis, inputs=tuple(seen[i] for i in range(count)), outputs=tuple(outputs))


class _Stamp:
    """Copies a joint graph, and repeats the blocks in its middle."""

    def __init__(self, short: Shortened, traced: Joint, blocks: Blocks, captured: Captured, fakes: Fakes) -> None:
        self.graph = Graph()
        self._short = short
        self._traced = traced
        self._blocks = blocks
        self._captured = captured
        self._fakes = fakes
        self._calls = {call.name: i for calls in short.ends(short.layers) for i, call in enumerate(calls)}
        self._outside: dict[Node, Node] = {}
        self._stamped: dict[Place, Node] = {}
        second, third, last = (self._first_number((FORWARD, k)) for k in (1, 2, KEPT - 1))
        self._step, self._last = third - second, last

    def run(self, returns: Sequence[Any], gradients: Mapping[int, Any]) -> tuple[int, ...]:
        """Makes the graph; returns the input of each gradient."""
        self._copy_inputs()
        for block, nodes in self._blocks.runs:
            for layer in self._layers_like(block):
                for node in nodes:
                    if node.op not in ("placeholder", "output"):
                        self._copy(node, block, layer)
        found = self._gradients(gradients)
        order = tuple(sorted(found))
        self.graph.output((*(self._found(x, None) for x in returns), *(found[i] for i in order)))
        return order

    def _first_number(self, block: Block) -> int:
        """The first sequence number of a block."""
        nodes = next(nodes for found, nodes in self._blocks.runs if found == block)
        return min((node.meta["seq_nr"] for node in nodes if "seq_nr" in node.meta), default=0)

    def _layers_like(self, block: Block | None) -> Sequence[int]:
        """The layers of the whole graph whose blocks are copies of this one, in the order of the graph."""
        between = self._short.between
        if block is None or block[1] == 0:
            return (0,)
        if block[1] == KEPT - 1:
            return (block[1] + between,)
        if block[0] == FORWARD:
            return range(2, 3 + between) if block[1] == 2 else (1,)
        return (2 + between,) if block[1] == 2 else range(1 + between, 0, -1)

    def _copy_inputs(self) -> None:
        given = self._traced.module.graph.find_nodes(op="placeholder")
        count = len(self._short.kept)
        like = dict(zip(self._short.kept, given, strict=False))
        for layer in self._short.inputs:
            like |= {i: like[n] for i, n in zip(layer, self._short.inputs[1], strict=True) if i not in like}
        own = {i: Place(INPUT, k, n) for k, layer in enumerate(self._short.inputs) for n, i in enumerate(layer)}
        for i, fake in enumerate(self._fakes.values):
            node = self.graph.placeholder(f"primals_{i + 1}")
            node.meta = dict(like[i].meta)
            if i in own:
                self._stamped[own[i]] = node
                node.meta["val"] = fake.detach()
            else:
                self._outside[like[i]] = node
        for tangent in given[count:]:
            self._outside[tangent] = self.graph.node_copy(tangent)
        placeholders = self.graph.find_nodes(op="placeholder")
        record_inputs(
            placeholders, self._captured.module.graph.find_nodes(op="placeholder"), len(self._captured.held), {}
        )

    def _copy(self, node: Node, block: Block | None, layer: int) -> None:
        moved = None if block is None else layer - block[1]
        args, kwargs = map_arg((node.args, node.kwargs), lambda x: self._found(x, moved))
        copy = self.graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copy.meta = dict(node.meta)
        self._number(copy, moved)
        if block is None:
            self._outside[node] = copy
            return
        self._stamped[self._blocks.places[node].moved(layer - block[1])] = copy
        call = self._short.layers[layer][self._calls[node.meta[CAME_FROM][0]]]
        copy.meta[CAME_FROM] = (call.name,)
        copy.meta |= {key: call.meta[key] for key in INHERITED if key in copy.meta and key in call.meta}

    def _number(self, copy: Node, moved: int | None) -> None:
        """Counts the sequence numbers of the layers before."""
        number = copy.meta.get("seq_nr")
        if number is not None:
            if moved is None:
                moved = self._short.between if number >= self._last else 0
            copy.meta["seq_nr"] = number + moved * self._step

    def _place(self, node: Node, moved: int | None) -> Place | None:
        """The place in the whole graph of what a copy reads that is this many layers behind the traced node."""
        place = self._blocks.places.get(node)
        if place is None:
            return None
        if moved is None:
            moved = self._short.between if place.layer == KEPT - 1 else 0
        return place.moved(moved)

    def _found(self, given: Any, moved: int | None) -> Any:
        if not isinstance(given, Node):
            return given
        place = self._place(given, moved)
        return self._outside[given] if place is None else self._stamped[place]

    def _gradients(self, traced: Mapping[int, Any]) -> dict[int, Any]:
        """The gradient of each input of the whole graph that has one."""
        own = {i for layer in self._short.inputs for i in layer}
        found = {i: self._found(node, None) for i, node in traced.items() if i not in own}
        ends, between = self._short.ends(self._short.inputs), self._short.between
        for layer, inputs in enumerate(self._short.inputs):
            like = layer if layer <= 1 else max(1, layer - between)
            pairs = zip(inputs, ends[like], strict=True)
            found |= {i: self._found(traced[n], layer - like) for i, n in pairs if n in traced}
        return found
