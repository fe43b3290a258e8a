"""Keeps the strides of results that are views of computed values.

Torch's code generator chooses the layout of a computed value, and of a result that is a view of it keeps only the order of
the strides, by a copy if need be. Laid out as in the graph, the value has that view, and needs no copy; where the generator
reads a view by an index of its own, the result is copied to its strides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.graph.effects.bases import base_node
from eductor.graph.values.meta import output_of, tensor_of

_MARK = "eductor_has_strides_of_graph"


def mark_results(module: GraphModule, visible: Collection[int]) -> None:
    """Mark the visible results that are computed, and the computed values of which they are views."""
    results = output_of(module)
    for result in (results[k] for k in visible):
        for node in (result, base_node(result)) if isinstance(result, Node) else ():
            if node.op == "call_function":
                node.meta[_MARK] = True


def lay_out_marked(run_node: Callable[..., Any], lowering: Any, node: Node) -> Any:
    """Lower a node, and lay out a marked value as it is in the graph."""
    from torch._inductor.ir import ExternKernel, TensorBox
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    result, value = run_node(lowering, node), tensor_of(node)
    if _MARK not in node.meta or not isinstance(result, TensorBox) or value is None:
        return result
    if value.layout is not torch.strided or free_unbacked_symbols(value.stride()):
        return result
    result.realize()
    return ExternKernel.require_exact_strides(result, value.stride())
