"""Replaces Python floats that the graph reads from tensors by these tensors, or by constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from eductor.compat import FakeTensorMode, ShapeEnv
from eductor.graph import GraphView, No, Rewriter, tensor_of, value_of
from eductor.pipeline.base import f32, f64, graph_pass, i64

aten = torch.ops.aten

TAKES_TENSORS: frozenset[Any] = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


@graph_pass(
    stage="joint",
    numerics="exact",
    when=lambda context: not context.takes_numbers or No("the engine runs graphs that read Python floats from tensors"),
)
def without_numbers(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces Python floats that the graph reads from tensors by these tensors, or by constants.

    Dynamo makes tensors of one element of Python floats that are inputs, and the graph reads them with `item`. Kernels
    have no place for a number that is read at run time. Where the tensor itself can stand in its place, it does; elsewhere
    the number becomes a constant, and a call with another number is another compile.

    It pays always: an engine whose kernels take no numbers fails without it.
    """
    for node in graph.find(aten._local_scalar_dense):
        if not isinstance(value_of(node), torch.SymFloat):
            rewrite.reject("it reads no float", node)
            continue
        for user in list(node.users):
            stand_in: Any = node.args[0] if _takes_a_tensor(user, node) else float(value_of(node))
            _put(rewrite, user, node, stand_in)
        rewrite.erase(node)


def _takes_a_tensor(user: Node, number: Node) -> bool:
    """Whether a tensor of one element promotes to the same dtype as the number: beside floats with dimensions."""
    if user.target not in TAKES_TENSORS or number not in user.args[:2]:
        return False
    other = tensor_of(user.args[1] if user.args[0] is number else user.args[0])
    return other is not None and other.dim() > 0 and other.is_floating_point()


def _put(rewrite: Rewriter, user: Node, number: Node, stand_in: Any) -> None:
    """Puts something else in place of the number among the arguments of a node."""

    def other(node: Node) -> Any:
        return stand_in if node is number else node

    rewrite.update(user, args=map_arg(user.args, other), kwargs=map_arg(user.kwargs, other))


NUMBER: float = f64().make(1).item()
"""What the second input of the examples holds."""


def _reads(make: Callable[[], Any]) -> Callable[[GraphModule], None]:
    """The graph as Dynamo leaves it: in place of the number 2.0 it reads its second input."""

    def prepare(module: GraphModule) -> None:
        graph, given = module.graph, module.graph.find_nodes(op="placeholder")[1]
        users = [n for n in graph.nodes if 2.0 in n.args]
        with graph.inserting_after(given):
            read = graph.call_function(aten._local_scalar_dense.default, (given,))
        read.meta["val"] = make()
        for node in users:
            node.args = tuple(read if x == 2.0 else x for x in node.args)

    return prepare


def _float() -> Any:
    """A symbolic number that was `NUMBER` when the graph was captured: half of it for each of two rows."""
    rows = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.empty(2), static_shapes=False).shape[0]
    return rows * (NUMBER / 2)


@without_numbers.example(prepare=_reads(_float), context={"takes_numbers": False})
def tensor_in_its_place(x: torch.Tensor = f32(3), number: torch.Tensor = f64()) -> torch.Tensor:
    return x * 2.0


@without_numbers.example(prepare=_reads(_float), context={"takes_numbers": False})
def constant_in_its_place(x: torch.Tensor = f32(3), number: torch.Tensor = f64()) -> torch.Tensor:
    return torch.clamp(x, 2.0)


@without_numbers.refuses("it reads no float", prepare=_reads(lambda: 2), context={"takes_numbers": False})
def whole_number(x: torch.Tensor = f32(3), number: torch.Tensor = i64()) -> torch.Tensor:
    return torch.clamp(x, 2.0)
