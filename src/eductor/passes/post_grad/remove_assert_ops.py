"""Removes checks of tensor metadata that are known to hold."""

from __future__ import annotations

import torch

from eductor.graph import GraphView, Rewriter
from eductor.graph.reading.asserts import holds_for_certain
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="exact")
def remove_assert_ops(graph: GraphView, rewrite: Rewriter) -> None:
    """Removes checks of tensor metadata that are known to hold.

    They cannot fail, and as users of the values that they check they block other passes.

    It pays through later passes: values have one user less.
    """
    for node in graph.find(aten._assert_tensor_metadata):
        if verdict := holds_for_certain(node):
            rewrite.erase(node)
        else:
            rewrite.reject(verdict, node)


@remove_assert_ops.example
def dtype_of_a_product(a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5)) -> torch.Tensor:
    y = a @ b
    aten._assert_tensor_metadata(y, None, None, a.dtype, device=a.device)
    return y.relu()


def _expect_another_dtype(module: torch.fx.GraphModule) -> None:
    """Changes the expected dtype: tracing would reject such a check, only an earlier pass could leave it."""
    (check,) = module.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default)
    check.args = (*check.args[:3], torch.float64)


@remove_assert_ops.refuses("its dtype is not known to be torch.float64", prepare=_expect_another_dtype)
def check_that_fails(x: torch.Tensor = f32(4)) -> torch.Tensor:
    aten._assert_tensor_metadata(x, None, None, torch.float32)
    return x + 1
