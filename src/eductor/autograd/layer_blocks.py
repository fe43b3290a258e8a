"""The nodes of repeated layers in a joint graph: a block of each layer in the forward, and one in the backward.

Four layers were traced. All that may lie between the first and the last one are alike if the two in the middle are: each
forward is traced from the results of the layer before, each backward from those of the layer behind, and these are alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from torch.fx import Graph, Node
from torch.fx.node import map_arg

from eductor.autograd.provenance import INHERITED
from eductor.autograd.repeats import may_repeat
from eductor.autograd.shortened import KEPT, Shortened
from eductor.graph.no import No
from eductor.graph.values.meta import CAME_FROM, is_backward, metadata_key, value_of

FORWARD, BACKWARD, INPUT = "forward", "backward", "input"
_KNOWN = {*INHERITED, CAME_FROM, "val", "tensor_meta", "original_aten", "seq_nr", "partitioner_tag"}
"""The metadata that a copy of a node can get."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is: in the block of a layer, or among the inputs that a layer alone reads."""

    kind: str
    layer: int
    index: int

    def moved(self, layers: int) -> Place:
        return replace(self, layer=self.layer + layers)


Block = tuple[str, int]
"""The kind and the layer of a block."""


class Blocks:
    """The blocks of a joint graph."""

    def __init__(self, graph: Graph, short: Shortened) -> None:
        self._layers = {call.name: k for k, calls in enumerate(short.ends(short.layers)) for call in calls}
        self.runs = [(block, list(nodes)) for block, nodes in groupby(list(graph.nodes), key=self._block_of)]
        self.places: dict[Node, Place] = {}
        primals = dict(zip(short.kept, graph.find_nodes(op="placeholder"), strict=False))
        for k, inputs in enumerate(short.ends(short.inputs)):
            self.places.update({primals[number]: Place(INPUT, k, i) for i, number in enumerate(inputs)})
        for block, nodes in self.runs:
            if block is not None:
                self.places.update({node: Place(*block, i) for i, node in enumerate(nodes)})

    def _block_of(self, node: Node) -> Block | None:
        names = node.meta.get(CAME_FROM, ())
        if node.op != "call_function" or len(names) != 1 or names[0] not in self._layers:
            return None
        return BACKWARD if is_backward(node) else FORWARD, self._layers[names[0]]

    def are_at_ends(self, nodes: Iterable[Any]) -> bool:
        """Whether these are values of the first or the last layer, or of none."""
        places = (self.places[x] for x in nodes if x in self.places)
        return all(place.layer in (0, KEPT - 1) for place in places)

    def are_periodic(self) -> Literal[True] | No:
        """Whether the blocks of further layers are known."""
        blocks = {block: nodes for block, nodes in self.runs if block is not None}
        if not self._are_in_order():
            return No("the layers are not computed one after the other")
        for block, nodes in self.runs:
            refused = next((node for node in nodes if not self._can_be_copied(node, block)), None)
            if refused is not None:
                return No(f"{refused.name} cannot be copied", refused)
        forwards = [blocks[FORWARD, k] for k in range(KEPT - 1)]
        if len({tuple((n.target, metadata_key(value_of(n))) for n in nodes) for nodes in forwards}) > 1:
            return No("the first layer is computed in another way than the next ones")
        for kind in (FORWARD, BACKWARD):
            second, third = ([self._form(n, k) for n in blocks.get((kind, k), ())] for k in (1, 2))
            if second != third:
                return No(f"the {kind} of a layer is computed in another way than that of the next one")
        return True

    def _are_in_order(self) -> bool:
        """Whether each block is in one piece, and all those of the forward, and of the backward, follow each other."""
        found = [block for block, _ in self.runs]
        forward = [(FORWARD, k) for k in range(KEPT)]
        backward = [(BACKWARD, k) for k in reversed(range(KEPT))]
        between = [[block for block in found if block and block[0] == kind] for kind in (FORWARD, BACKWARD)]
        return between in ([forward, []], [forward, backward]) and all(
            found[(start := found.index(blocks[0])) : start + KEPT] == blocks for blocks in between if blocks
        )

    def _can_be_copied(self, node: Node, block: Block | None) -> bool:
        """Whether a node reads only the values of its own layer and of its neighbours, and nothing else is known of it."""
        read = [self.places[x] for x in node.all_input_nodes if x in self.places]
        if block is None:
            return node.op == "output" or self.are_at_ends(node.all_input_nodes)
        near = all(p.layer == block[1] if p.kind == INPUT else abs(p.layer - block[1]) <= 1 for p in read)
        is_known = node.op == "call_function" and node.meta.keys() <= _KNOWN
        return near and is_known and may_repeat(node)

    def _form(self, node: Node, layer: int) -> Any:
        """A node as seen from its layer."""
        given = map_arg((node.args, dict(node.kwargs)), lambda x: self.seen(x, layer))
        return node.target, metadata_key(given), metadata_key(value_of(node))

    def seen(self, node: Node | None, layer: int) -> Any:
        """What a node, or None, is for a layer."""
        place = self.places.get(node) if node is not None else None
        if place is None:
            return ("outside", node.name if node is not None else None)
        # The backward of the last layer may be another: what it gives comes from outside of the layers.
        is_behind = place.kind == BACKWARD and place.layer > layer
        return (place.kind, place.layer - layer, None if is_behind else place.index)
