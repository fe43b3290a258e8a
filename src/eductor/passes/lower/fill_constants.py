"""Makes a tensor of each constant of one element, which Inductor takes for a number."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node, map_arg

from eductor.graph import GraphView, Rewriter
from eductor.graph.snapshot import attribute_or_none
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="lower", numerics="exact")
def fill_constants(graph: GraphView, rewrite: Rewriter) -> None:
    """Makes a tensor of each constant of one element, which Inductor takes for a number.

    It pays always: operators fail in Inductor that do not take numbers.
    """
    for node in graph.each("get_attr"):
        constant = attribute_or_none(graph.module, str(node.target))
        if not isinstance(constant, torch.Tensor) or _is_filled(node):
            continue
        if constant.dim():
            rewrite.reject("it has dimensions, so it is read from memory", node)
            continue
        users = list(node.users)
        copy = rewrite.insert(aten.clone.default, node, before=node.next, like=node)
        for user in users:
            rewrite.update(
                user, args=_with(copy, node, user.args), kwargs=_with(copy, node, user.kwargs), respelled=True
            )


def _is_filled(node: Node) -> bool:
    return all(user.target is aten.clone.default for user in node.users)


def _with(copy: Node, node: Node, arguments: Any) -> Any:
    return map_arg(arguments, lambda n: copy if n is node else n)


TWO, ROW = torch.tensor(2.0), torch.tensor([1.0, 2.0, 3.0])


@fill_constants.example
def constant_of_one_element(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.atan2(x, TWO)


@fill_constants.refuses("it has dimensions")
def constant_row(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x * ROW
