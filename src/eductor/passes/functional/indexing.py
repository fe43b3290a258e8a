"""Indexing with what is known of the indices: a permutation has each once and none out of range; `arange` has a device."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_true, tensor_of, value_of
from eductor.patterns import Match, any_of, const, op, var

aten = torch.ops.aten
prims = torch.ops.prims

IOTAS = (prims.iota, aten.arange)
INDEXINGS = (aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten._unsafe_index_put.default)


INDEX = op(aten.index.Tensor, var("x"), var("indices", anything=True))
INDEX_ADD = any_of(
    op(aten.index_add, var("x"), const("dim"), var("index"), var("added"), alpha=const("alpha")),
    op(aten.index_put.default, var("x"), var("indices", anything=True), var("added"), const("accumulate")),
)


def randperm_index(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    """What a permutation picks needs no check of its bounds."""
    picks = _picks(graph, match)
    if not picks:
        return
    if not (stays := _is_in_range(graph, match["x"], picks)):
        rewrite.reject(stays, match.output)
    else:
        rewrite.replace(match.output, aten._unsafe_index.Tensor, match["x"], match["indices"])


def randperm_index_add(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    """A sum into places that a permutation picks is a sum of what is picked, stored: no place is met twice."""
    picks, target, node = _picks(graph, match), match["x"], match.output
    if not picks:
        return
    alpha = match.bindings.get("alpha", 1)
    may = _may_be_stored(match, picks, alpha) and _is_in_range(graph, target, picks)
    if not may:
        rewrite.reject(may, node)
        return
    ((dim, index),) = picks.items()
    indices = [*[None] * dim, index]
    picked = rewrite.insert(aten._unsafe_index.Tensor, target, indices, before=node)
    total = rewrite.insert(aten.add.Tensor, picked, match["added"], before=node, alpha=alpha)
    rewrite.replace(node, aten._unsafe_index_put.default, target, indices, total)


def _may_be_stored(match: Match, picks: dict[int, Node], alpha: Any) -> Literal[True] | No:
    target = value_of(match["x"])
    if not match.bindings.get("accumulate", True):
        return No("it stores, and does not add")
    if len(picks) > 1:
        return No("several indices together may meet a place twice")
    if alpha != 1 and (target.dtype.is_floating_point or target.dtype.is_complex):
        return No(f"the product with alpha={alpha} may be rounded otherwise")
    if not is_row_major(target):
        return No("the strides of the result may differ: what is added to is not row-major")
    return True


def _picks(graph: GraphView, match: Match) -> dict[int, Node]:
    """The indices by their dimensions, if each is of a permutation."""
    rank = value_of(match["x"]).dim()
    if rank == 0:
        return {}
    given = match.bindings
    found = {given["dim"] % rank: given["index"]} if "dim" in given else dict(enumerate(given["indices"]))
    found = {dim: index for dim, index in found.items() if index is not None}
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


def _is_in_range(graph: GraphView, target: Node, picks: dict[int, Node]) -> Literal[True] | No:
    for dim, index in picks.items():
        count = _permutation(graph, index)
        if not known_true(count <= value_of(target).shape[dim]):
            return No(f"a permutation of {count} numbers is not known to stay within dimension {dim} of {target.name}")
    return True


def fix_iota_device(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """`arange` on the CPU that indexes tensors of one other device is made there: nothing is copied to it."""
    bound, tensor = graph.bind(node), tensor_of(node)
    if not isinstance(bound, Bound) or tensor is None or tensor.device.type != "cpu":
        return
    devices = {value.device for user in node.users if (value := tensor_of(user)) is not None} - {tensor.device}
    if not devices:
        return
    may = _may_be_made_there(graph, node, bound, devices)
    if not may:
        rewrite.reject(may, node)
        return
    args, kwargs = bound.call()
    rewrite.replace(node, bound.op, *args, **{**kwargs, "device": devices.pop()})


def _may_be_made_there(graph: GraphView, node: Node, bound: Bound, devices: set[torch.device]) -> Literal[True] | No:
    for user in node.users:
        if not (is_index := _is_index(graph, node, user)):
            return is_index
    if len(devices) > 1:
        return No("it indexes tensors of several devices")
    if any(value_of(user).device.type == "cpu" for user in node.users):
        return No("it indexes a tensor on the CPU, too")
    return No("it lies in pinned memory") if bound.get("pin_memory") else True


def _is_index(graph: GraphView, node: Node, user: Node) -> Literal[True] | No:
    bound = graph.bind(user) if graph.is_call(user, *INDEXINGS) else None
    if not isinstance(bound, Bound):
        return No(f"{user.name} uses it otherwise than as an index")
    other = (bound["self"], bound.get("values"))
    return No(f"{user.name} uses it as more than an index") if node in other else True
