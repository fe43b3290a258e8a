"""Calls mutable operators and Triton kernels that functionalization wrapped, on what they may write."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Node

from eductor.compat import HigherOrderOperator
from eductor.graph import GraphView, Rewriter
from eductor.graph.wrappers.auto_functionalized import functional_call, functional_call_on_bases, functional_kernel
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten

UNWRAP: dict[str, Callable[[Rewriter, Node], None]] = {
    "auto_functionalized": functional_call,
    "auto_functionalized_v2": functional_call_on_bases,
    "triton_kernel_wrapper_functional": functional_kernel,
}
"""By the names of higher-order operators: torch defines some of them when they are first used."""


@graph_pass(stage="lower", numerics="exact", restrides=True)
def unwrap_functional_calls(graph: GraphView, rewrite: Rewriter) -> None:
    """Calls mutable operators and Triton kernels that functionalization wrapped, on what they may write.

    What the wrapped call would write is copied first, unless it is new memory that no other node reads later. A copy begins
    at its own memory, wherever the original does.

    It pays always: Inductor fails without it.
    """
    for node in graph.candidates([n for n in graph.nodes if isinstance(n.target, HigherOrderOperator)]):
        unwrap = UNWRAP.get(node.target.name())  # type: ignore[union-attr]
        if unwrap is None:
            rewrite.reject(f"{node.target} wraps no operator that writes", node)
        else:
            unwrap(rewrite, node)


torch.library.define("eductor::add_into", "(Tensor(a!) x, Tensor by) -> ()")


@torch.library.impl("eductor::add_into", "CompositeExplicitAutograd")
def _add_into(x: torch.Tensor, by: torch.Tensor) -> None:
    """An operator for the examples: user libraries have such ones."""
    x.add_(by)


@unwrap_functional_calls.example
def input_is_written(x: torch.Tensor = f32(4), by: torch.Tensor = f32(4)) -> torch.Tensor:
    _, y = torch.ops.higher_order.auto_functionalized(torch.ops.eductor.add_into.default, x=x, by=by)
    return y * 2  # type: ignore[no-any-return]


@unwrap_functional_calls.example
def part_of_new_memory_is_written(by: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    """Functionalization names the tensor whose memory is written, and says which part of it the argument is."""
    part = {"_x_base_index": 0, "_x_slice_dim": 0, "_x_slice_start": 1, "_x_slice_end": 3}
    call = torch.ops.higher_order.auto_functionalized_v2
    _, total = call(torch.ops.eductor.add_into.default, by=by, **part, _all_bases=[by.new_zeros(4, 3)])
    return total.exp()  # type: ignore[no-any-return]


@unwrap_functional_calls.refuses("wraps no operator that writes")
def a_branch(x: torch.Tensor = f32(4)) -> torch.Tensor:
    return torch.ops.higher_order.cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x.cos(),), (x,))[0]  # type: ignore[no-any-return]
