"""Checks that two values read the same elements, by running both on tensors of indices."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Node, map_arg

from eductor.errors import BadGraph
from eductor.graph import value_of
from eductor.graph.values.meta import hint_of


def check_equal(old: Node, new: Node, sources: Collection[Node]) -> None:
    """Raises BadGraph unless two values are the same elements of the sources; symbolic sizes are taken as their hints."""
    numbers: dict[Node, Any] = {}
    first = 0
    for source in sources:
        shape = [hint_of(size) for size in value_of(source).shape]
        count = torch.Size(shape).numel()
        numbers[source] = torch.arange(first, first + count).reshape(shape)
        first += count
    a, b = _run(old, numbers), _run(new, numbers)
    if a.shape != b.shape or not torch.equal(a, b):
        raise BadGraph(f"{new.name} does not read the elements that {old.name} has")


def _run(node: Node, known: dict[Node, Any]) -> Any:
    """The value of a node, given those of its sources; sizes are their hints."""
    if node in known:
        return known[node]
    if isinstance(value_of(node), (int, torch.SymInt)):
        return hint_of(value_of(node))
    args, kwargs = map_arg((node.args, node.kwargs), lambda operand: _run(operand, known))
    if isinstance(node.target, str):
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)
