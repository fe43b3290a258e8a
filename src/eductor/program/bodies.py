"""Bodies that repeated regions of a final graph share: each is a graph of its own, which calls by this operator run."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

invoke_subgraph = torch.ops.higher_order.invoke_subgraph

STANDS_FOR = "eductor_stands_for"
"""The key for the names of the calls, one of each region, that a call in a body stands for."""
SHARED = "eductor_shared"
"""The key, in the metadata of a module, that tells a shared body from one that the user wrote."""


def body_of(module: GraphModule, call: Node) -> GraphModule:
    """The body that a call of a graph runs."""
    body: GraphModule = getattr(module, str(call.all_input_nodes[0].target))
    return body


def shared_calls(module: GraphModule) -> list[Node]:
    """The calls of shared bodies in a graph."""
    calls = module.graph.find_nodes(op="call_function", target=invoke_subgraph)
    return [call for call in calls if SHARED in body_of(module, call).meta]
