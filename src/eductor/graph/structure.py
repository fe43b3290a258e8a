"""A structural hash: the same for graphs that compute the same in the same way, in every process."""

from __future__ import annotations

import hashlib
from typing import Any

from torch.fx import Graph, Node

from eductor.graph.meta import value_of
from eductor.graph.printer import literal, path_of, symbol_names, type_of


def structural_hash(graph: Graph) -> str:
    """A key of the whole graph: operators, constants, wiring, types and order, but no names of nodes."""
    hashes = node_hashes(graph)
    return _digest(*(hashes[n] for n in graph.nodes))


def node_hashes(graph: Graph) -> dict[Node, str]:
    """For each node a hash of all that it is computed from. Inputs are told apart by their position and type."""
    hashes: dict[Node, str] = {}
    names = symbol_names(graph)
    inputs = 0
    for node in graph.nodes:
        kind = type_of(value_of(node), names)
        if node.op == "placeholder":
            hashes[node] = _digest("input", str(inputs), kind)
            inputs += 1
            continue
        target = node.target if isinstance(node.target, str) else path_of(node.target)
        hashes[node] = _digest(node.op, target, _spell(node.args, hashes), _spell(node.kwargs, hashes), kind)
    return hashes


def region_hash(nodes: list[Node]) -> str:
    """A key of a few nodes in order, with what comes from outside numbered as it appears: for repeated regions."""
    hashes: dict[Node, str] = {}
    for node in nodes:
        for operand in node.all_input_nodes:
            hashes.setdefault(operand, _digest("outside", str(len(hashes)), type_of(value_of(operand))))
        target = node.target if isinstance(node.target, str) else path_of(node.target)
        hashes[node] = _digest(
            node.op, target, _spell(node.args, hashes), _spell(node.kwargs, hashes), type_of(value_of(node))
        )
    return _digest(*(hashes[n] for n in nodes))


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
