"""Python floats that became inputs: Dynamo makes them tensors of one element, and the graph reads them with `item`.

Kernels have no place for a number that is read at run time. Where the tensor itself can stand in its place, it does;
elsewhere the number becomes a constant, and another one is another compile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import tensor_of, value_of
from eductor.graph.view import GraphView

aten = torch.ops.aten

TAKES_TENSORS: frozenset[Any] = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


def without_numbers(module: GraphModule) -> None:
    """Rewrites a joint graph so that no node reads a float, in place."""
    nodes = [n for n in module.graph.nodes if n.target is aten._local_scalar_dense.default and _is_float(n)]
    if not nodes:
        return
    rewrite = Rewriter(GraphView(module), "engine/numbers")
    for node in nodes:
        for user in list(node.users):
            stand_in: Any = node.args[0] if _takes_a_tensor(user, node) else float(value_of(node))
            _put(rewrite, user, node, stand_in)
        rewrite.erase(node)
    rewrite.finish()
    module.recompile()


def _is_float(node: Node) -> bool:
    return isinstance(value_of(node), torch.SymFloat)


def _takes_a_tensor(user: Node, number: Node) -> bool:
    """Whether a tensor of one element promotes to the same dtype as the number: beside floats of some dimension."""
    if user.target not in TAKES_TENSORS or number not in user.args[:2]:
        return False
    other = tensor_of(user.args[1] if user.args[0] is number else user.args[0])
    return other is not None and other.dim() > 0 and other.is_floating_point()


def _put(rewrite: Rewriter, user: Node, number: Node, stand_in: Any) -> None:
    """Puts something else in place of the number among the arguments of a node."""

    def other(node: Node) -> Any:
        return stand_in if node is number else node

    rewrite.update(user, args=map_arg(user.args, other), kwargs=map_arg(user.kwargs, other))
