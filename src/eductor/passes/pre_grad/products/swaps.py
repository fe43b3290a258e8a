"""Recognizes exchanges of the last two dims, by any operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph import Bound, bind, tensor_of

aten = torch.ops.aten

SWAPS = (aten.permute, aten.transpose, aten.t, aten.mT, aten.numpy_T, aten.movedim)
"""The operators that may exchange the last two dims."""


def swapped(node: Any) -> Node | None:
    """The value of which a node is a view with the last two dims exchanged; None for any other node."""
    if not isinstance(node, Node):
        return None
    bound, tensor = bind(node), tensor_of(node)
    if not isinstance(bound, Bound) or tensor is None or bound.packet not in SWAPS:
        return None
    rank = tensor.dim()
    dims = _permutation(bound, rank)
    if rank < 2 or dims != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    source = bound["self"]
    return source if isinstance(source, Node) else None


def _permutation(bound: Bound, rank: int) -> list[int] | None:
    """The dim of the operand for each dim of the result."""
    dims = list(range(rank))
    if bound.packet is aten.permute:
        return [d % rank for d in bound["dims"]] if all(type(d) is int for d in bound["dims"]) and rank else None
    if bound.packet is aten.transpose:
        if bound.op is not aten.transpose.int or rank == 0:
            return None
        a, b = bound["dim0"] % rank, bound["dim1"] % rank
        dims[a], dims[b] = dims[b], dims[a]
    elif bound.packet is aten.movedim:
        return _moved(bound["source"], bound["destination"], rank)
    elif bound.packet is aten.numpy_T:
        dims.reverse()
    else:
        dims[-2:] = dims[-2:][::-1]
    return dims


def _moved(source: Any, destination: Any, rank: int) -> list[int]:
    origins = [d % rank for d in (source if isinstance(source, (list, tuple)) else [source])]
    places = [d % rank for d in (destination if isinstance(destination, (list, tuple)) else [destination])]
    moved = dict(zip(places, origins, strict=True))
    rest = iter(d for d in range(rank) if d not in origins)
    return [moved[d] if d in moved else next(rest) for d in range(rank)]
