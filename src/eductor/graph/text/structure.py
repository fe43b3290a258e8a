"""Structural hashes: equal for graphs of the same calls, and stable across processes."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from eductor.compat import FakeTensor
from eductor.graph.snapshot import attribute_or_none
from eductor.graph.text.printer import literal, path_of, symbol_names, type_of
from eductor.graph.values.meta import value_of


def structural_hash(graph: Graph) -> str:
    """A key of the whole graph: operators, constants, subgraphs, wiring, types and order, without names of nodes."""
    hashes = node_hashes(graph)
    return _digest(*(hashes[n] for n in graph.nodes))


def node_hashes(graph: Graph) -> dict[Node, str]:
    """For each node a hash of everything it is computed from. Inputs are distinguished by position and type."""
    hashes: dict[Node, str] = {}
    names = symbol_names(graph)
    for node in graph.nodes:
        is_input = node.op == "placeholder"
        hashes[node] = (
            _digest("input", str(len(hashes)), _type(node, names)) if is_input else _hash(node, hashes, names)
        )
    return hashes


def region_hash(nodes: list[Node]) -> str:
    """A key of a few nodes in order, with outside operands numbered by appearance: to find repeated regions."""
    hashes: dict[Node, str] = {}
    for node in nodes:
        for operand in node.all_input_nodes:
            hashes.setdefault(operand, _digest("outside", str(len(hashes)), _type(operand, {})))
        hashes[node] = _hash(node, hashes, {})
    return _digest(*(hashes[n] for n in nodes))


def attribute_hash(node: Node) -> str:
    """A key of the value of an attribute node: a subgraph by its structure, a parameter by its type, a small
    constant by its contents; a large or missing one by its name."""
    value = attribute_or_none(node.graph.owning_module, str(node.target))
    if isinstance(value, GraphModule):
        return structural_hash(value.graph)
    if isinstance(value, torch.nn.Parameter):
        return _digest("parameter", type_of(value))
    if isinstance(value, torch.Tensor) and value.numel() <= CONTENTS and not isinstance(value, FakeTensor):
        return _digest("constant", type_of(value), repr(value.detach().cpu().tolist()))
    return str(node.target)


CONTENTS = 1024
"""Constants with at most this many elements are distinguished by their contents."""


def _hash(node: Node, hashes: dict[Node, str], names: dict[str, str]) -> str:
    if node.op == "get_attr":
        return _digest("get_attr", attribute_hash(node))
    target = node.target if isinstance(node.target, str) else path_of(node.target)
    return _digest(node.op, target, _spell(node.args, hashes), _spell(node.kwargs, hashes), _type(node, names))


def _type(node: Node, names: dict[str, str]) -> str:
    return type_of(value_of(node), names)


def _spell(value: Any, hashes: dict[Node, str]) -> str:
    if isinstance(value, Node):
        return hashes[value]
    if isinstance(value, (list, tuple)):
        return f"({','.join(_spell(v, hashes) for v in value)})"
    if isinstance(value, dict):
        return f"{{{','.join(f'{k}:{_spell(v, hashes)}' for k, v in sorted(value.items()))}}}"
    return literal(value)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
