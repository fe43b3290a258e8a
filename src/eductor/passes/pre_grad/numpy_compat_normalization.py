"""Renames keyword arguments from numpy's names to torch's: axis, keepdims, x, a, x1, x2."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload, OpOverloadPacket
from eductor.graph import Bound, GraphView, No, Rewriter, bind, bind_call
from eductor.graph.reading import spellings
from eductor.graph.reading.schema import candidates, parameters
from eductor.graph.text.compare import same_value
from eductor.pipeline.base import f32, graph_pass

_NUMPY = frozenset(spellings.KEYWORDS) - {"input"}


@graph_pass(stage="pre_grad", numerics="exact")
def numpy_compat_normalization(graph: GraphView, rewrite: Rewriter) -> None:
    """Renames keyword arguments from numpy's names to torch's: axis, keepdims, x, a, x1, x2.

    It is for third-party passes, which read keywords by their names.

    It pays only for those that read the graph: no value changes.
    """
    if all(map(_has_torch_names, graph.nodes)):
        return
    for node in graph.each("call_function", "call_method"):
        if _has_torch_names(node):
            continue
        kwargs = _renamed(node)
        if isinstance(kwargs, No):
            rewrite.reject(kwargs, node)
        else:
            rewrite.update(node, kwargs=kwargs, respelled=True)


def _has_torch_names(node: Node) -> bool:
    kwargs = node.kwargs
    return not kwargs or _NUMPY.isdisjoint(kwargs) or isinstance(node.target, (OpOverload, OpOverloadPacket))


def _renamed(node: Node) -> dict[str, Any] | No:
    """The keywords by torch's names; No if the call would not bind to the same arguments."""
    packet = spellings.packet_of(node.target)
    if packet is None:
        return No(f"{spellings.name_of(node.target)} is not an operator, its arguments may have other names")
    names = {p.name for op in candidates(packet) for p in parameters(op)}
    kwargs: dict[str, Any] = {}
    for name, value in node.kwargs.items():
        if name in _NUMPY and name in names:
            return No(f"the operator has an argument called {name!r}")
        renamed = _name_in_torch(name, names) if name in _NUMPY else name
        if renamed in kwargs or (renamed != name and renamed in node.kwargs):
            return No(f"{renamed!r} is passed twice, under two names")
        kwargs[renamed] = value
    before, after = bind(node), bind_call(node.target, node.args, kwargs)
    if not isinstance(before, Bound):
        return before
    if not isinstance(after, Bound) or before.op is not after.op or not same_value(before.arguments, after.arguments):
        return No("the call would bind to other arguments")
    return kwargs


def _name_in_torch(name: str, known: set[str]) -> str:
    """The name in torch's functions, which call the schema's `self` `input`."""
    found = spellings.keyword(name, known)
    return "input" if found == "self" else found


@numpy_compat_normalization.example
def sum_along_an_axis(x: torch.Tensor = f32(2, 3)) -> Any:
    return torch.sum(x, axis=1, keepdims=True) + x.mean(axis=0)  # type: ignore[call-overload]


@numpy_compat_normalization.example
def operands_by_name(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> Any:
    return torch.add(x1=a, x2=b)  # type: ignore[call-overload]


@numpy_compat_normalization.refuses("has an argument called 'axis'")
def axis_of_channels(x: torch.Tensor = f32(2, 3), scale: torch.Tensor = f32(3)) -> torch.Tensor:
    zero = torch.zeros(3, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(x, scale, zero, axis=1, quant_min=0, quant_max=9)


@numpy_compat_normalization.refuses("out= writes")
def out_of_the_callers(x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(2)) -> Any:
    return torch.sum(x, axis=1, out=y)  # type: ignore[call-overload]
