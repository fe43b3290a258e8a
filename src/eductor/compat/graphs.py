"""Adapters for torch.fx graphs, their nodes and metadata."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.proxy import _COPY_META_FIELDS

# Metadata that a replacement node inherits: torch's own list, and what Dynamo and export add.
INHERITED_META: tuple[str, ...] = (*_COPY_META_FIELDS, "stack_trace", "seq_nr")

EXPORTED_CHECKS = "_guards_fn"
"""The submodule in which an exported graph checks guards on its inputs."""


def codegen_of(graph: Graph) -> Any:
    """The code generator of a graph, which flattens its inputs and unflattens its outputs."""
    return graph._codegen


def calls_of(nodes: Iterable[Node]) -> Iterator[Any]:
    """For each node four entries: kind, target, positional and keyword arguments, as the node holds them."""
    return itertools.chain.from_iterable(map(_CALL, nodes))


_CALL = operator.attrgetter("op", "target", "_args", "_kwargs")


def sort_key(node: Node) -> Any:
    """A key that orders nodes as in their graph; torch.fx maintains it at each insertion."""
    return node._sort_key


def is_erased(node: Node) -> bool:
    """Whether a node was erased from its graph."""
    return node._erased


@contextmanager
def created_nodes(module: GraphModule) -> Iterator[list[Node]]:
    """Collects the nodes created in a module's graph during the context, including those erased again."""
    made: list[Node] = []
    module.graph.owning_module = module  # another module may have the same graph: the owner's hooks are called
    module._register_create_node_hook(made.append)
    try:
        yield made
    finally:
        module._unregister_create_node_hook(made.append)


def lazy_module(root: torch.nn.Module, graph: Graph) -> torch.fx.GraphModule:
    """A module whose code is generated on first use; passes and engines only read its graph."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a call of a module runs more than its forward."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def has_checkpoint_policy(region: GraphModule) -> bool:
    """Whether a checkpointed region has a selective-checkpoint policy."""
    return "_checkpoint_context_fn" in region.meta


def wants_recompute(node: Node) -> bool:
    """Whether the user's checkpointing requires or prefers recomputing a node in the backward."""
    from torch.utils.checkpoint import CheckpointPolicy

    policy = node.meta.get("recompute")
    return policy in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def must_be_saved(node: Node) -> bool:
    """Whether the user's checkpointing requires saving a node's value."""
    from torch.utils.checkpoint import CheckpointPolicy

    return node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE


def prefers_saving(node: Node) -> bool:
    """Whether the user's checkpointing prefers saving a node's value."""
    from torch.utils.checkpoint import CheckpointPolicy

    return node.meta.get("recompute") is CheckpointPolicy.PREFER_SAVE


def checkpointed_in(node: Node) -> Any:
    """The checkpointed region in which a node was computed, or None."""
    return node.meta.get("ac_graph_id") if "recompute" in node.meta else None
