"""Creates constants on the accelerator if only the accelerator uses them, so that no copy is needed."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import Bound, GraphView, No, Rewriter, tensor_of, value_of
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten
prims = torch.ops.prims

_CONSTRUCTORS = (
    *(aten.full, aten.zeros, aten.ones, aten.arange, prims.iota, aten.scalar_tensor, aten.eye, aten.linspace),
    *(aten.logspace, aten.tril_indices, aten.triu_indices, aten.empty, aten.empty_strided),
)
"""Operators that create a tensor from numbers; not the random ones, since the accelerator draws other numbers."""
_INDEXINGS = (aten.index, aten._unsafe_index, aten.index_put, aten._unsafe_index_put)


@dataclass(slots=True)
class _Connected:
    """Values on the CPU that are computed from constants and depend on each other."""

    nodes: dict[Node, None] = field(default_factory=dict)
    is_used_there: bool = False
    """Whether the accelerator reads one of them."""
    may_move: Literal[True] | No = True


@graph_pass(stage="post_grad", numerics="reassociates")
def move_constructors_to_gpu(graph: GraphView, rewrite: Rewriter) -> None:
    """Creates constants on the accelerator if only the accelerator uses them, so that no copy is needed.

    Values computed from them on the CPU move, too: all values that depend on each other, or none. They stay if one of
    them is returned, is read as a number, or is combined with another tensor on the CPU.

    It pays always: the CPU waits for a copy between devices, and CUDA graphs cannot record one.
    """
    devices = {device for node in graph.nodes for device in _devices(node)} - {torch.device("cpu")}
    if not devices:
        return
    seen: set[Node] = set()
    for node in graph.find(*_CONSTRUCTORS):
        if node in seen or not _is_on_cpu(node):
            continue
        found = _connected(graph, node)
        seen.update(found.nodes)
        if len(devices) > 1:
            found.may_move = No("the graph has several other devices")
        if not found.may_move:
            rewrite.reject(found.may_move, node)
        elif found.is_used_there:
            for member in found.nodes:
                _move(graph, rewrite, member, next(iter(devices)))


def _move(graph: GraphView, rewrite: Rewriter, node: Node, device: torch.device) -> None:
    """Changes the device that a call names; a call without one computes where its operands are."""
    bound = graph.bind(node)
    if not isinstance(bound, Bound) or "device" not in bound.arguments:
        return
    if bound["device"] is not None or graph.is_call(node, *_CONSTRUCTORS):
        args, kwargs = bound.call()
        rewrite.update(node, target=bound.op, args=tuple(args), kwargs={**kwargs, "device": device})


def _connected(graph: GraphView, first: Node) -> _Connected:
    found = _Connected({first: None})
    pending = [first]
    while pending and found.may_move:
        node = pending.pop()
        found.may_move = _may_move(graph, node)
        related = [x for x in node.all_input_nodes if _is_on_cpu(x)]
        for user in node.users:
            if _is_on_cpu(user):
                related.append(user)
            elif found.may_move:
                found.may_move = _is_used_there(graph, node, user)
                found.is_used_there |= bool(found.may_move)
        fresh = [x for x in related if x not in found.nodes]
        found.nodes.update(dict.fromkeys(fresh))
        pending += fresh
    return found


def _may_move(graph: GraphView, node: Node) -> Literal[True] | No:
    """Whether a value on the CPU can be computed on another device."""
    if node.target is operator.getitem:
        return True
    bound = graph.bind(node) if isinstance(node.target, OpOverload) else None
    if node.op != "call_function" or not isinstance(bound, Bound):
        return No(f"{node.name} is on the CPU", node)
    if bound.op.namespace not in ("aten", "prims") or not graph.effects.of(node).removable:
        return No(f"{node.name} is a custom operator or has an effect", node)
    if bound.get("pin_memory"):
        return No(f"{node.name} is in pinned memory", node)
    is_made = graph.is_call(node, *_CONSTRUCTORS)
    if not is_made and not node.all_input_nodes:
        return No(f"{node.name} is created by an operator that stays on the CPU", node)
    return No(f"{node.name} is copied to the CPU", node) if _devices_of_operands(node) - {torch.device("cpu")} else True


def _is_used_there(graph: GraphView, node: Node, user: Node) -> Literal[True] | No:
    """Whether a user that returns no tensor on the CPU may take a value from the accelerator."""
    if user.op == "output":
        return No(f"{node.name} is returned on the CPU", node)
    bound = graph.bind(user) if isinstance(user.target, OpOverload) else None
    if not isinstance(bound, Bound) or bound.op.namespace not in ("aten", "prims"):
        return No(f"{user.name} may need {node.name} on the CPU", user, node)
    if tensor_of(user) is None:
        is_size = graph.is_call(user, aten.sym_size, aten.sym_stride, aten.sym_numel, aten.sym_storage_offset)
        return True if is_size else No(f"{user.name} reads {node.name} on the CPU", user, node)
    if graph.is_call(user, *_INDEXINGS) and value_of(node).dtype in (torch.bool, torch.uint8):
        return No(f"{user.name} counts the elements that the mask {node.name} selects", user, node)
    return True


def _is_on_cpu(node: Node) -> bool:
    return any(device.type == "cpu" for device in _devices(node))


def _devices(node: Node) -> set[torch.device]:
    """The devices of a tensor or of the tensors of a sequence."""
    value: Any = value_of(node)
    if isinstance(value, torch.Tensor):
        return {value.device}
    return {v.device for v in value if isinstance(v, torch.Tensor)} if isinstance(value, (list, tuple)) else set()


def _devices_of_operands(node: Node) -> set[torch.device]:
    return set().union(*map(_devices, node.all_input_nodes))


@move_constructors_to_gpu.example
def range_of_another_device(x: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    # The meta device acts as an accelerator.
    return x.to("meta")[torch.arange(3) + 1].sin()


@move_constructors_to_gpu.refuses("is returned on the CPU")
def range_that_is_returned(x: torch.Tensor = f32(4, 3)) -> tuple[torch.Tensor, torch.Tensor]:
    index = torch.arange(4)
    return x.to("meta")[index], index


@move_constructors_to_gpu.refuses("is on the CPU")
def range_that_meets_an_input(x: torch.Tensor = f32(4), y: torch.Tensor = f32(4)) -> torch.Tensor:
    return y.to("meta") * (x + torch.arange(4)).to("meta")
