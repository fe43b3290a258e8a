"""Bodies that repeated regions of a final graph share: each is a graph of its own, which calls by this operator run."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

invoke_subgraph = torch.ops.higher_order.invoke_subgraph

STANDS_FOR = "eductor_stands_for"
"""The key for the names of the calls, one of each region, that a call in a body stands for."""


def calls_bodies(module: GraphModule) -> bool:
    """Whether a graph has calls of shared bodies."""
    return bool(module.graph.find_nodes(op="call_function", target=invoke_subgraph))
