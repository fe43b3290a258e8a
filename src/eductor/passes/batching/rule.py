"""A rule of batching: which calls it takes, which operands are stacked, and how the batch is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from eductor.cost import Device
from eductor.graph import Bound, No, Rewriter, value_of
from eductor.graph.view import key_of

Columns = tuple[Node | None, ...]


class CallReading(NamedTuple):
    """A call as a rule reads it: the operands that differ from call to call, and what all calls must agree in."""

    columns: Columns
    attributes: tuple[Any, ...]


class BatchCall(NamedTuple):
    """A call that may be batched with others."""

    node: Node
    bound: Bound
    reading: CallReading

    @property
    def columns(self) -> Columns:
        return self.reading.columns

    @property
    def result(self) -> torch.Tensor:
        found: torch.Tensor = value_of(self.node)
        return found


def saved_launches(calls: list[BatchCall], device: Device, trains: bool) -> float:
    """Seconds that a batch saves where a call takes little longer than its launch."""
    return (len(calls) - 1) * device.launch * (2 if trains else 1)


@dataclass(frozen=True, slots=True)
class Column:
    """An operand of a batch: stacked along a new first dimension, or one value that all calls share."""

    node: Node
    is_shared: bool


@dataclass(frozen=True, slots=True)
class Emission:
    """Inserts the nodes of a batch at one place."""

    rewrite: Rewriter
    before: Node
    like: Node

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        return self.rewrite.insert(op, *args, before=self.before, like=self.like, **kwargs)


@dataclass(frozen=True)
class BatchRule:
    """One kind of batch."""

    name: str
    operators: tuple[Any, ...]
    read: Callable[[Node, Bound], CallReading | No]
    """The operands of a call to stack, or why it cannot be batched."""
    emit: Callable[[Emission, BatchCall, list[Column | None], int], Node]
    """Emits a batch of a size from its columns; the result has the batch as its first dimension."""
    saves: Callable[[list[BatchCall], Device, bool], float]
    """Seconds saved by batching the calls, without the cost of stacking; the last argument: with their backward."""
    is_pointwise: bool = False
    """Pays only where nothing has to be stacked for it: unbatched, it fuses into its neighbours."""

    @functools.cached_property
    def keys(self) -> tuple[Any, ...]:
        """The keys of its operators in a graph's index of calls."""
        return tuple(dict.fromkeys(map(key_of, self.operators)))
