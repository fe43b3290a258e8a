"""Traces functions on values of a graph, with the decompositions of that graph; each trace is cached."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from types import CellType, FunctionType
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import FakeTensorMode, has_inductor_table, without_autocast
from eductor.graph import GraphView, value_of
from eductor.graph.decomposition_tables import Table, tables
from eductor.graph.values.meta import fake_mode_of, is_backward
from eductor.patterns.trace.tracing import TRACED, aten_graph
from eductor.regions.congruence import Reference


class Retrace:
    """Traces functions as the functions of a graph were traced.

    Models repeat themselves. A function is told from others by its code and by what it has captured, values by their form.
    """

    def __init__(self, graph: GraphView) -> None:
        self._mode = fake_mode_of(graph.graph) or FakeTensorMode()
        self.tables = _tables(graph)
        self.has_backward = any(map(is_backward, graph.graph.nodes))
        self._made: dict[Any, Reference] = {}

    @staticmethod
    def of(graph: GraphView) -> Retrace:
        """That of a view, which lives as long as the view."""
        if Retrace not in graph.memo:
            graph.memo[Retrace] = Retrace(graph)
        found: Retrace = graph.memo[Retrace]
        return found

    def fits(self, table: Table) -> None:
        """Remembers that the graph was made with these decompositions."""
        self.tables.sort(key=lambda other: other is not table)

    def __call__(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[Node],
        table: Table,
        gradients: Sequence[bool],
        tangent: Node | None = None,
    ) -> Reference:
        """The graph of a function, with its backward if any gradient is wanted; by default the tangent lies as the value does."""
        values = [value_of(n) for n in inputs]
        given = value_of(tangent) if tangent is not None and any(gradients) else None
        key = (_meaning(fn), id(table), tuple(map(_form, values)), tuple(gradients), _form(given))
        if key not in self._made:
            self._made[key] = self._trace(fn, values, table, gradients, given)
        return self._made[key]

    def _trace(
        self, fn: Callable[..., Any], values: Sequence[Any], table: Table, gradients: Sequence[bool], given: Any
    ) -> Reference:
        # One tensor in two places is two inputs: the next use of the trace may have two different ones.
        apart = [v.detach() if isinstance(v, torch.Tensor) else v for v in values]
        tangents = [given] if given is not None else None
        with without_autocast():  # whose casts are in the graph
            module, _ = aten_graph(fn, apart, gradients, self._mode, table, tangents)
        return Reference(module, any(gradients))


def _tables(graph: GraphView) -> list[Table]:
    """The decompositions that a graph may have been made with.

    Those of the code generator go first: where both fit, it may insist on its own.
    """
    if not has_inductor_table():
        return [{}]
    # What draws and computes is taken apart where the numbers need not be eager's.
    fallback_random = bool(graph.calls(torch.ops.aten.native_dropout))
    return list(tables("aten", fallback_random=fallback_random))[::-1]


def is_traced(node: Node) -> bool:
    """Whether a node is an input of a trace: one whose value is a plain number is a constant there."""
    return isinstance(value_of(node), TRACED)


def _form(value: Any) -> Any:
    """What a trace knows of a value."""
    if isinstance(value, torch.Tensor):
        geometry = (*value.shape, None, *value.stride(), None, value.storage_offset())
        return value.dtype, value.device, tuple(map(str, geometry)), id(getattr(value, "constant", None))
    return str(value)


_PLAIN = (int, float, complex, str, bytes, type(None))


def _meaning(fn: Any) -> Any:
    """A key that two functions share only if they compute the same: by their code and what they have captured."""
    if isinstance(fn, FunctionType):
        captured = (fn.__defaults__, fn.__kwdefaults__, *map(_content, fn.__closure__ or ()))
        return fn.__code__, id(fn.__globals__), tuple(map(_meaning, captured))
    if isinstance(fn, functools.partial):
        return tuple(map(_meaning, (fn.func, fn.args, fn.keywords)))
    if isinstance(fn, (tuple, list)):
        return type(fn), tuple(map(_meaning, fn))
    if isinstance(fn, (frozenset, set)):
        return type(fn), frozenset(map(_meaning, fn))
    if isinstance(fn, dict):
        return type(fn), tuple((_meaning(k), _meaning(v)) for k, v in fn.items())
    if _is_frozen(fn):
        return type(fn), tuple(_meaning(getattr(fn, field.name)) for field in fields(fn))
    return (type(fn), repr(fn)) if isinstance(fn, _PLAIN) else _Same(fn)


def _is_frozen(value: Any) -> bool:
    parameters = getattr(value, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and not isinstance(value, type)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


class _Same:
    """Equal for the same object alone, which it keeps alive: no other gets its id."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value
