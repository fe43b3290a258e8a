"""Replaces functional operators by ones that write in place, where the old contents are dead."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from eductor.compat import sort_key
from eductor.graph import Bound, GraphView, No, Rewriter
from eductor.passes.post_grad.inplace.operators import INDEXED, WHOLE, write_list, write_operand, write_part
from eductor.passes.post_grad.inplace.safety import is_write_back
from eductor.passes.post_grad.inplace.views import SCATTERS
from eductor.passes.post_grad.inplace.work import Work
from eductor.passes.post_grad.inplace.wrapped import call_in_place, is_wrapper
from eductor.pipeline.base import Context, f32, graph_pass, i64

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="exact", in_place=True)
def reinplace_inplaceable_ops(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Replaces functional operators by ones that write in place, where the old contents are dead.

    Each candidate is checked alone, in the order of the graph: against all later reads of the memory, the other
    operands of the call, the outputs of the graph, and the write-back of an input. An input is written only where the
    graph writes it back at its end; that copy is removed if it then copies an input to itself. Inputs that overlap with
    a written one were merged into one when the graph was traced; a caller that runs the stage directly must make sure
    that none does.

    It pays where a small part of a large tensor is written, as in the caches of a decoder: the rest is not copied.
    """
    candidates = _candidates(graph)
    if not candidates:
        return
    work = Work(graph, rewrite, inputs_disjoint=context.graph.role != "backward", fuses=context.fuses)
    for node in graph.candidates(candidates):
        _write_in_place(work, node)
    for node in graph.candidates([n for n in graph.nodes if is_write_back(n)]):
        place, value = node.args
        assert isinstance(place, Node)
        if isinstance(value, Node) and work.places.is_written(place) and work.places.same(place, value):
            rewrite.replace(node, place)


_ONE_BY_ONE = {*SCATTERS, *INDEXED, *WHOLE}


def _candidates(graph: GraphView) -> list[Node]:
    """The calls that may have a form that writes in place, found by their operators."""
    named = [key for key in graph.operators() if key in _ONE_BY_ONE or str(key).startswith("aten._foreach_")]
    calls = {node for key in named for node in graph.calls(key) if _is_functional(graph.bind(node))}
    wrappers = {node for key in graph.operators() if is_wrapper(key) for node in graph.calls(key)}
    return sorted(calls | wrappers, key=sort_key)


def _is_functional(call: Bound | No) -> bool:
    """Whether a call is one of the operators that write one operand, or a functional `_foreach` operator."""
    if not isinstance(call, Bound) or call.packet in _ONE_BY_ONE:
        return isinstance(call, Bound)
    name = call.op._schema.name
    return name.startswith("aten::_foreach_") and not name.endswith("_") and bool(call.op._schema.returns)


def _write_in_place(work: Work, node: Node) -> None:
    bound = work.graph.bind(node)
    if not isinstance(bound, Bound):
        call_in_place(work, node)
    elif bound.packet in SCATTERS:
        write_part(work, node, bound)
    elif bound.packet in _ONE_BY_ONE:
        write_operand(work, node, bound)
    else:
        write_list(work, node, bound)


@reinplace_inplaceable_ops.example
def step_of_a_cache(
    cache: torch.Tensor = f32(4, 3), row: torch.Tensor = i64(1), new: torch.Tensor = f32(1, 3)
) -> torch.Tensor:
    cache[row] = new
    return cache @ cache.t()


@reinplace_inplaceable_ops.example
def sum_into_zeros(rows: torch.Tensor = i64(5), values: torch.Tensor = f32(5, 3)) -> torch.Tensor:
    return torch.zeros(8, 3, dtype=values.dtype).index_put([rows], values, True)


@reinplace_inplaceable_ops.example
def assignment_to_a_part_of_a_part(x: torch.Tensor = f32(2, 4, 3), y: torch.Tensor = f32(3)) -> torch.Tensor:
    x[1][2] = y
    return x.sum()


def _read_late(module: GraphModule) -> None:
    """Moves the read of the old contents after the call that computes the new ones, as a pass may."""
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    (put,) = module.graph.find_nodes(op="call_function", target=aten.index_put.default)
    put.append(product)


@reinplace_inplaceable_ops.refuses("is returned, and would alias")
def new_contents_that_are_returned(
    x: torch.Tensor = f32(4, 3), row: torch.Tensor = i64(1), y: torch.Tensor = f32(1, 3)
) -> torch.Tensor:
    x[row] = y
    return x


@reinplace_inplaceable_ops.refuses("mul reads the old contents of", prepare=_read_late)
def old_contents_that_are_read(
    x: torch.Tensor = f32(4, 3), row: torch.Tensor = i64(1), y: torch.Tensor = f32(1, 3)
) -> torch.Tensor:
    doubled = x * 2
    x[row] = y
    return doubled


@reinplace_inplaceable_ops.refuses("the graph does not write back to")
def input_that_is_not_written(x: torch.Tensor = f32(3, 3), y: torch.Tensor = f32(3)) -> torch.Tensor:
    return torch.select_scatter(x, y, 0, 1) + 1
