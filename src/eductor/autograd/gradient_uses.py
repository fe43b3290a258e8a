"""The gradient of an input, one part for each use.

A value may be used outside of the graph as well: after a graph break, in a penalty of the loss. Autograd then adds all
parts of its gradient in sequence, and the rounding depends on the order. A graph that returns the sum of its own parts
changes that order; a graph that returns the parts does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

Edge = tuple[Any, int]
"""The destination of a gradient: a node of autograd, and the number of its output whose gradient it takes."""


def gradients_in_sum(
    results: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    *,
    create_graph: bool = False,
) -> list[list[torch.Tensor]]:
    """For each input its gradient as a single part; no part where it has none."""
    sums = torch.autograd.grad(results, inputs, tangents, create_graph=create_graph, allow_unused=True)
    return [[] if total is None else [total] for total in sums]


def gradients_by_use(
    results: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    *,
    create_graph: bool = False,
) -> list[list[torch.Tensor]]:
    """For each input the parts of its gradient, in the order in which autograd adds them; no part where it has none."""
    places = [_edge(x) for x in inputs]
    parts: dict[Edge, list[Any]] = {place: [] for place in places}
    for result, tangent in zip(results, tangents, strict=True):
        if (place := _edge(result)) in parts:
            parts[place].append(tangent)
    steps = list(autograd_nodes((_edge(x)[0] for x in results), {step for step, _ in places}))
    counted = Counter(edge for step in steps for edge in step.next_functions)
    several = {place for place, found in parts.items() if counted[place] + len(found) > 1}
    hooks = [step.register_hook(_noting(step, parts)) for step in steps if several & set(step.next_functions)]
    try:
        sums = gradients_in_sum(results, inputs, tangents, create_graph=create_graph)
    finally:
        for hook in hooks:
            hook.remove()
    found = zip(places, inputs, sums, strict=True)
    return [
        parts[place] if place in several and _can_be_summed(parts[place], x) else total for place, x, total in found
    ]


def _edge(value: torch.Tensor) -> Edge:
    step, number, *_ = get_gradient_edge(value)
    return step, number


def autograd_nodes(starts: Iterable[Any], ends: Collection[Any] = ()) -> Iterator[Any]:
    """The nodes of autograd reachable from some of them, which may be None, up to the ends."""
    pending = [step for step in dict.fromkeys(starts) if step is not None and step not in ends]
    seen = {*pending, *ends}
    while pending:
        step = pending.pop()
        yield step
        for following, _ in step.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def _noting(step: Any, parts: dict[Edge, list[Any]]) -> Callable[[Any, Any], None]:
    edges = step.next_functions

    def note(given: Sequence[Any], _: Any) -> None:
        for place, gradient in zip(edges, given, strict=True):
            if place in parts and gradient is not None:
                parts[place].append(gradient)

    return note


def _can_be_summed(parts: Sequence[Any], value: torch.Tensor) -> bool:
    """Whether autograd adds the parts as they are: parts of another shape or dtype are converted first."""
    return bool(parts) and all(
        (g.shape, g.dtype, g.device, g.layout) == (value.shape, value.dtype, value.device, value.layout) for g in parts
    )
