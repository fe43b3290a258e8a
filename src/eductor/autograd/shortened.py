"""A captured graph of which repeated layers are left out: the first three and the last one remain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from eductor import compat
from eductor.autograd.captured import Captured, Fakes
from eductor.autograd.repeats import Repeats, find_repeats
from eductor.graph.no import No
from eductor.graph.values.meta import metadata_key, value_of

T = TypeVar("T")
KEPT = 4
"""The first layer, the last one, and two between them: if these are alike, so are all that could be between them."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """A shortened graph with its inputs."""

    captured: Captured
    fakes: Fakes
    layers: tuple[tuple[Node, ...], ...]
    """The calls of each layer of the whole graph."""
    inputs: tuple[tuple[int, ...], ...]
    """The inputs that each layer alone reads, by their numbers in the whole graph."""
    kept: tuple[int, ...]
    """The inputs of the shortened graph, by their numbers in the whole graph."""

    @property
    def between(self) -> int:
        """How many layers are left out."""
        return len(self.layers) - KEPT

    def ends(self, parts: Sequence[T]) -> list[T]:
        """Those of the layers that were kept."""
        return [*parts[: KEPT - 1], parts[-1]]


def shortened(captured: Captured, fakes: Fakes) -> Shortened | No:
    """A graph without the middle ones of its repeated layers."""
    graph = captured.module.graph
    if type(captured) is not Captured or not all(map(_is_static, graph.nodes)):
        return No("inputs overlap, or sizes may change")
    repeats = find_repeats(graph)
    if isinstance(repeats, No):
        return repeats
    placeholders = graph.find_nodes(op="placeholder")
    numbers = {node: len(captured.held) + i for i, node in enumerate(placeholders)}
    inputs = tuple(tuple(numbers[node] for node in layer) for layer in repeats.inputs)
    if any(len({_form(fakes.values[i]) for i in same}) > 1 for same in zip(*inputs, strict=True)):
        return No("the layers take different inputs")
    left_out = {node for part in (repeats.calls, repeats.inputs) for layer in part[KEPT - 1 : -1] for node in layer}
    short = Captured(compat.lazy_module(captured.module, _without(graph, repeats, left_out)))
    held = {id(x): i for i, x in enumerate(captured.held)}
    kept = (*(held[id(x)] for x in short.held), *(numbers[node] for node in placeholders if node not in left_out))
    return Shortened(short, Fakes(fakes.mode, tuple(fakes.values[i] for i in kept)), repeats.calls, inputs, kept)


def _is_static(node: Node) -> bool:
    """Whether all sizes of a node are numbers."""
    return not any(
        compat.is_symbolic(x) if isinstance(x, torch.Tensor) else isinstance(x, _SYMBOLS)
        for x in pytree.tree_leaves(value_of(node))
    )


_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _form(fake: Any) -> Any:
    """All that a trace sees of an input."""
    seen = (fake.requires_grad, fake.is_leaf, fake._is_view()) if isinstance(fake, torch.Tensor) else ()
    return type(fake), metadata_key(fake), seen


def _without(graph: Graph, repeats: Repeats, left_out: set[Node]) -> Graph:
    """A copy without these nodes, in which the last layer reads the third instead of the one before it."""
    copy, new = Graph(), dict[Node, Node]()
    instead = dict(zip(repeats.calls[-2], repeats.calls[KEPT - 2], strict=True))
    for node in graph.nodes:
        if node not in left_out:
            new[node] = copy.node_copy(node, lambda n: new[instead.get(n, n)])
    return copy
