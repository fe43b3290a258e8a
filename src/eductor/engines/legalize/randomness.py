"""Random draws: they take numbers from one generator, so they must run in the order of the program.

Inductor's scheduler orders kernels by their data alone. A marker after the last draw tells it the rest; the engine
lowers it, and our seeded operators.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from eductor import ops
from eductor.compat import OpOverload
from eductor.graph.rewriter import Rewriter
from eductor.graph.snapshot import attribute_or_none
from eductor.graph.values.meta import known_equal, value_of

drawn_in_order = ops.random.drawn_in_order.default


def keep_draws_in_order(rewrite: Rewriter) -> None:
    """Puts the marker behind the last draw, if there are two and it is not there yet."""
    graph, module = rewrite.view.graph, rewrite.view.module
    draws = []
    for node in graph.nodes:
        if node.op == "call_function":
            if node.target is drawn_in_order:
                return
            if _draws(module, node):
                draws.append(node)
    if len(draws) > 1:
        end = draws[-1].next
        rewrite.insert(drawn_in_order, [_tensor(rewrite, n, end) for n in draws], before=end, like=draws[-1])


def _draws(module: GraphModule, node: Node) -> bool:
    """Whether a node takes numbers from the default generator, by itself or in a subgraph."""
    target = node.target
    if isinstance(target, OpOverload):
        return torch.Tag.nondeterministic_seeded in target.tags and not _drops_nothing(node, target)
    if target is torch.ops.higher_order.run_and_save_rng_state:
        return True
    bodies = (attribute_or_none(module, str(a.target)) for a in node.all_input_nodes if a.op == "get_attr")
    return any(
        _draws(body, inner)
        for body in bodies
        if isinstance(body, GraphModule)
        for inner in body.graph.nodes
        if inner.op == "call_function"
    )


def _drops_nothing(node: Node, op: OpOverload) -> bool:
    """Attention without dropout carries the tag, and draws nothing."""
    names = [a.name for a in op._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return known_equal(given, 0.0)


def _tensor(rewrite: Rewriter, node: Node, before: Node) -> Node:
    """A draw, or the first tensor among its results."""
    value = value_of(node)
    if not isinstance(value, (tuple, list)):
        return node
    first = next(i for i, one in enumerate(value) if isinstance(one, torch.Tensor))
    return rewrite.insert(operator.getitem, node, first, before=before, like=node)
