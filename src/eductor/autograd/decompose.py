"""Decomposes operators of a functional ATen graph by a table of decompositions.

Models repeat themselves. An operator is traced once for operands of one form, and the resulting graph is copied
wherever the operator occurs again: copying a node is far cheaper than tracing it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils import _pytree as pytree

from eductor import compat
from eductor.autograd.cpu_dropout import eagers_dropouts
from eductor.autograd.masked_writes import gradients_of_masked_writes
from eductor.compat import OpOverload, make_fx
from eductor.graph.values.kernel_layouts import with_kernel_layouts
from eductor.graph.values.meta import metadata_key, output_of, tensor_of, value_of
from eductor.graph.values.module_tensors import attribute_at

_OF_THE_PIECE = ("val", "tensor_meta", "original_aten", "unbacked_bindings")


def decompose(module: GraphModule, table: Mapping[Any, Any]) -> GraphModule:
    """The graph with the operators of the table decomposed; the graph itself if it has none of them."""
    if not any(node.target in table for node in module.graph.nodes if node.op == "call_function"):
        return module
    return _Decomposer(module, table).result()


class _Decomposer:
    """Copies a graph, replacing operators by their traced decompositions."""

    def __init__(self, module: GraphModule, table: Mapping[Any, Any]) -> None:
        self._module = module
        self._table = dict(table)
        self._graph = Graph()
        self._copies: dict[Node, Any] = {}
        self._pieces: dict[tuple[Any, ...], GraphModule] = {}
        self._constants: dict[str, Any] = {}

    def result(self) -> GraphModule:
        for node in self._module.graph.nodes:
            self._copies[node] = self._copy(node)
        for name, constant in self._constants.items():
            setattr(self._module, name, constant)
        return compat.lazy_module(self._module, self._graph)

    def _copy(self, node: Node) -> Any:
        if node.target is operator.getitem and not isinstance(self._copies[node.args[0]], Node):  # type: ignore[index]
            return self._copies[node.args[0]][node.args[1]]  # type: ignore[index]
        if node.op == "call_function" and node.target in self._table:
            return self._inlined(node, self._piece(node))
        if node.op == "output":
            return self._graph.output(map_arg(node.args[0], lambda n: self._copies[n]))
        return self._graph.node_copy(node, lambda n: self._copies[n])

    def _piece(self, node: Node) -> GraphModule:
        """The traced decomposition of an operator for operands of this form."""
        form = (node.target, metadata_key(node.args), metadata_key(node.kwargs))
        if form not in self._pieces:
            args, kwargs = map_arg((node.args, node.kwargs), value_of)
            values, spec = pytree.tree_flatten((args, kwargs))
            places = [k for k, value in enumerate(values) if isinstance(value, torch.Tensor)]

            def run(*tensors: Any) -> Any:
                filled = list(values)
                for k, tensor in zip(places, tensors, strict=True):
                    filled[k] = tensor
                given, named = pytree.tree_unflatten(filled, spec)
                return node.target(*given, **named)  # type: ignore[operator]

            # A repeated operand counts as two: the next use of this trace may have two different ones.
            apart = [values[k].detach() for k in places]
            self._pieces[form] = make_fx(run, decomposition_table=self._table)(*apart)
        return self._pieces[form]

    def _inlined(self, node: Node, piece: GraphModule) -> Any:
        operands = [x for x in pytree.tree_leaves((node.args, node.kwargs)) if tensor_of(x) is not None]
        inner: dict[Node, Any] = dict(
            zip(piece.graph.find_nodes(op="placeholder"), (self._copies[x] for x in operands), strict=True)
        )
        for part in piece.graph.nodes:
            if part.op in ("call_function", "get_attr"):
                copy = self._graph.node_copy(part, lambda n: inner[n])
                copy.meta = {**node.meta, **{k: part.meta[k] for k in _OF_THE_PIECE if k in part.meta}}
                if part.op == "get_attr":
                    copy.target = self._keep(attribute_at(piece, str(part.target)))
                inner[part] = copy
        return map_aggregate(output_of(piece), lambda n: inner[n] if isinstance(n, Node) else n)

    def _keep(self, constant: Any) -> str:
        """The name of a constant in the new graph."""
        for name, known in self._constants.items():
            if known is constant:
                return name
        name = f"_decomposed_constant{len(self._constants)}"
        self._constants[name] = constant
        return name


Table = dict[Any, Callable[..., Any]]


def for_autograd(table: Mapping[Any, Callable[..., Any]], *, later: bool, exact: bool = False) -> Table:
    """The table for the trace in which operators still write: those that write in place or to `out=` are decomposed later.

    With `later`, the whole table is. Operators outside of it get the strides of their kernels from the start, and with
    `exact` their roundings.
    """
    rounded = {op: fn for op, fn in eagers_dropouts().items() if op not in table} if exact else {}
    now = {} if later else {op: fn for op, fn in table.items() if not _writes_by_name(op)}
    return with_kernel_layouts(table, rounded | gradients_of_masked_writes(exact=exact) | now)


def _writes_by_name(op: Any) -> bool:
    if not isinstance(op, OpOverload) or not op._schema.is_mutable:
        return False
    return op._schema.name.endswith("_") or any(a.is_out for a in op._schema.arguments)
