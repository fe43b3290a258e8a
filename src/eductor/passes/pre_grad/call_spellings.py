"""Normalizes how calls are spelled: keywords by torch's names, tensors first, methods as functions."""

from __future__ import annotations

import functools
import keyword
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload, OpOverloadPacket
from eductor.graph import Bound, GraphView, No, Rewriter, bind, bind_call
from eductor.graph.reading import spellings
from eductor.graph.reading.schema import Parameter, candidates, parameters
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
def sum_into_a_tensor_of_the_callers(x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(2)) -> Any:
    return torch.sum(x, axis=1, out=y)  # type: ignore[call-overload]


@graph_pass(stage="pre_grad", numerics="exact")
def normalize_node_kwargs_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Normalizes how operators are called: tensors first, all else by keyword, defaults left out, methods as functions.

    Our passes read arguments through `bind` and do not need it; it is for readers, diffs and third-party passes.

    It pays only for those that read the graph: no value changes.
    """
    normal: dict[Node, Bound] = graph.memo.setdefault("normal", {})
    for node in graph.each("call_function", "call_method"):
        bound = graph.bind(node)
        if bound is not normal.get(node):
            answer = _respell(rewrite, node, bound)
            if isinstance(answer, Bound):
                normal[node] = answer
            else:
                rewrite.reject(answer, node)


def _respell(rewrite: Rewriter, node: Node, bound: Bound | No) -> Bound | No:
    """Gives a call its normal form; returns the reading of that form."""
    if not isinstance(bound, Bound):
        return bound
    target = _function_of(node, bound)
    if target is None:
        return No("it calls the operator through a Python function, and keeps its form")
    args, kwargs = _layout(bound)
    if target is node.target and args == node.args and kwargs == node.kwargs:
        return bound
    again = bind_call(target, args, kwargs)
    if not isinstance(again, Bound) or not _is_same_call(again, bound):
        return No("the normal form would bind to other arguments")
    rewrite.respell(node, target, args, kwargs, again)
    return again


def _function_of(node: Node, bound: Bound) -> Any:
    """The function that calls the operator directly; None for an indirect call, which keeps its form."""
    if isinstance(node.target, OpOverload):
        return node.target
    if isinstance(node.target, str):
        return _function(bound.packet)
    return node.target if spellings.adapter_of(node.target) is None else None


_function = functools.cache(spellings.function_of)


def _is_same_call(again: Bound, bound: Bound) -> bool:
    """Whether two calls bind to one operator with equal arguments; most of these are identical objects."""
    return again.op is bound.op and all(
        value is (known := bound[name]) or same_value(value, known) for name, value in again.arguments.items()
    )


def _layout(bound: Bound) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Leading tensors by position, the rest by keyword, without defaults."""
    by_position, may_lead = _positions(bound.op)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for i, p in enumerate(parameters(bound.op)):
        if p.has_default and i > by_position and (p.name not in bound.given or same_value(bound[p.name], p.default)):
            continue
        if i <= by_position or (i == len(args) and p.name in may_lead):
            args.append(bound[p.name])
        else:
            kwargs[p.name] = bound[p.name]
    return tuple(args), kwargs


@functools.cache
def _positions(op: OpOverload) -> tuple[int, frozenset[str]]:
    """The last parameter that must be positional; the names that may be, where all parameters before them are."""
    params = parameters(op)
    by_position = max((i for i, p in enumerate(params) if not p.keyword_only and not _is_keyword(p)), default=-1)
    return by_position, frozenset(p.name for p in params if not p.keyword_only and "Tensor" in p.kind)


def _is_keyword(p: Parameter) -> bool:
    """Whether a parameter can be passed by keyword: `from` cannot, and functions call `self` by another name."""
    return not keyword.iskeyword(p.name) and p.name != "self"


@normalize_node_kwargs_pass.example
def numpy_spelling(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat([a, b], axis=1)  # type: ignore[call-arg]


@normalize_node_kwargs_pass.example
def varargs_method(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    return x.permute(0, 2, 1)


@normalize_node_kwargs_pass.example
def spelled_out_default(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat((x, x), 0)


@normalize_node_kwargs_pass.refuses("out= writes")
def out_of_the_callers(x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    return torch.cat([x, x], 0, out=y)


@normalize_node_kwargs_pass.refuses("several parts")
def compound_index(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x[:, None, 1:]
