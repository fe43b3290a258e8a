"""Calls as plain data: a part of a graph that can run on tensors and be compared with another part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node, map_arg

from eductor.graph import Bound, GraphView

aten = torch.ops.aten
prims = torch.ops.prims


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of a program: an input, or the result of an earlier call."""

    index: int


@dataclass(frozen=True, slots=True)
class TensorCall:
    """An operator with its arguments; lists are tuples, so that it is hashable."""

    op: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class CallProgram:
    """A sequence of calls; the last one gives the result."""

    calls: tuple[TensorCall, ...]

    def __call__(self, *inputs: Any) -> Any:
        values = list(inputs)
        for call in self.calls:
            args, kwargs = _filled(call.args, values), {k: _filled(v, values) for k, v in call.kwargs}
            values.append(call.op(*args, **kwargs))
        return values[-1]


def _filled(given: Any, values: Sequence[Any]) -> Any:
    if isinstance(given, Slot):
        return values[given.index]
    if isinstance(given, tuple):
        return tuple(_filled(x, values) for x in given)
    return given


@dataclass(slots=True)
class Writer:
    """Builds the program of nodes: values that none of its calls computes are its inputs."""

    inputs: dict[Node, int] = field(default_factory=dict)
    _calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    _made: dict[Node, int] = field(default_factory=dict)

    def take(self, node: Node) -> int:
        """The index of a value among the inputs."""
        return self.inputs.setdefault(node, len(self.inputs))

    def call(self, node: Node, op: Any, *args: Any, **kwargs: Any) -> None:
        """Adds the call that computes a node."""
        map_arg((args, kwargs), lambda n: None if n in self._made else self.take(n))
        self._made[node] = len(self._calls)
        self._calls.append((op, args, kwargs))

    def program(self) -> CallProgram:
        def slot(node: Node) -> Slot:
            return Slot(len(self.inputs) + self._made[node] if node in self._made else self.inputs[node])

        return CallProgram(
            tuple(
                TensorCall(op, _plain(args, slot), tuple((k, _plain(v, slot)) for k, v in kwargs.items()))
                for op, args, kwargs in self._calls
            )
        )


def _plain(given: Any, slot: Callable[[Node], Slot]) -> Any:
    if isinstance(given, Node):
        return slot(given)
    return tuple(_plain(x, slot) for x in given) if isinstance(given, (list, tuple)) else given


def write(graph: GraphView, writer: Writer, nodes: Iterable[Node]) -> None:
    """Adds nodes unchanged; a cast becomes the operator that autograd saw."""
    for node in nodes:
        bound = graph.bind(node)
        if isinstance(bound, Bound) and bound.packet is prims.convert_element_type:
            writer.call(node, aten._to_copy.default, bound["a"], dtype=bound["dtype"])
        else:
            writer.call(node, node.target, *node.args, **node.kwargs)
