"""Indexing with what is known of the indices: a permutation has each once and none out of range; `arange` has a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import is_row_major, known_true, tensor_of, value_of
from eductor.graph.view import GraphView

aten = torch.ops.aten
prims = torch.ops.prims

IOTAS = (prims.iota, aten.arange)
INDEXINGS = (aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten._unsafe_index_put.default)


def randperm_index(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """What a permutation picks needs no check of its bounds."""
    bound = graph.bind(node)
    if not isinstance(bound, Bound) or not (picks := _picks(graph, bound)):
        return
    reason = _out_of_range(graph, bound["self"], picks)
    if reason:
        rewrite.reject(reason, node)
    else:
        rewrite.replace(node, aten._unsafe_index.Tensor, bound["self"], bound["indices"])


def randperm_index_add(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """A sum into places that a permutation picks is a sum of what is picked, stored: no place is met twice."""
    bound = graph.bind(node)
    if not isinstance(bound, Bound) or not (picks := _picks(graph, bound)):
        return
    target = bound["self"]
    reason = _why_not_stored(bound, picks) or _out_of_range(graph, target, picks)
    if reason:
        rewrite.reject(reason, node)
        return
    ((dim, index),) = picks.items()
    indices = [*[None] * dim, index]
    added = bound["source"] if bound.packet is aten.index_add else bound["values"]
    picked = rewrite.insert(aten._unsafe_index.Tensor, target, indices, before=node)
    total = rewrite.insert(aten.add.Tensor, picked, added, before=node, alpha=bound.get("alpha", 1))
    rewrite.replace(node, aten._unsafe_index_put.default, target, indices, total)


def _why_not_stored(bound: Bound, picks: dict[int, Node]) -> str:
    target, alpha = value_of(bound["self"]), bound.get("alpha", 1)
    if not bound.get("accumulate", True):
        return "it stores, and does not add"
    if len(picks) > 1:
        return "several indices together may meet a place twice"
    if alpha != 1 and (target.dtype.is_floating_point or target.dtype.is_complex):
        return f"the product with alpha={alpha} may be rounded otherwise"
    return "" if is_row_major(target) else "the result may lie in memory otherwise: what is added to is not row-major"


def _picks(graph: GraphView, bound: Bound) -> dict[int, Node]:
    """The indices by their dimensions, if each is of a permutation."""
    tensor = tensor_of(bound["self"])
    if tensor is None or tensor.dim() == 0:
        return {}
    if bound.packet is aten.index_add:
        found = {bound["dim"] % tensor.dim(): bound["index"]}
    else:
        found = {dim: index for dim, index in enumerate(bound["indices"]) if index is not None}
    return found if all(_permutation(graph, index) is not None for index in found.values()) else {}


def _permutation(graph: GraphView, node: Any) -> Any:
    """Of how many numbers the permutation is, of which a value is a part; None if it is of none."""
    while isinstance(node, Node) and graph.is_call(node, aten.slice):
        bound = graph.bind(node)
        node = bound["self"] if isinstance(bound, Bound) else None
    if not isinstance(node, Node) or not graph.is_call(node, aten.randperm):
        return None
    bound = graph.bind(node)
    return value_of(bound["n"]) if isinstance(bound, Bound) else None


def _out_of_range(graph: GraphView, target: Node, picks: dict[int, Node]) -> str:
    for dim, index in picks.items():
        count = _permutation(graph, index)
        if not known_true(count <= value_of(target).shape[dim]):
            return f"a permutation of {count} numbers is not known to stay within dimension {dim} of {target.name}"
    return ""


def fix_iota_device(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """`arange` on the CPU that indexes tensors of one other device is made there: nothing is copied to it."""
    bound, tensor = graph.bind(node), tensor_of(node)
    if not isinstance(bound, Bound) or tensor is None or tensor.device.type != "cpu":
        return
    devices = {value.device for user in node.users if (value := tensor_of(user)) is not None} - {tensor.device}
    if not devices:
        return
    reason = next((r for user in node.users if (r := _is_more_than_index(graph, node, user))), "")
    if not reason and len(devices) > 1:
        reason = "it indexes tensors of several devices"
    if not reason and any(value_of(user).device.type == "cpu" for user in node.users):
        reason = "it indexes a tensor on the CPU, too"
    if not reason and bound.get("pin_memory"):
        reason = "it lies in pinned memory"
    if reason:
        rewrite.reject(reason, node)
        return
    args, kwargs = bound.call()
    rewrite.replace(node, bound.op, *args, **{**kwargs, "device": devices.pop()})


def _is_more_than_index(graph: GraphView, node: Node, user: Node) -> str:
    bound = graph.bind(user) if graph.is_call(user, *INDEXINGS) else None
    if not isinstance(bound, Bound):
        return f"{user.name} uses it otherwise than as an index"
    other = (bound["self"], bound.get("values"))
    return f"{user.name} uses it as more than an index" if node in other else ""
