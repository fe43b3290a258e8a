"""Normalizes how operators are called: tensors first, all else by keyword, defaults left out, methods as functions."""

from __future__ import annotations

import functools
import keyword
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import Bound, GraphView, Rewriter, bind_call
from eductor.graph.reading import spellings
from eductor.graph.reading.schema import Parameter, parameters
from eductor.graph.text.compare import same_value
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage="pre_grad", numerics="exact")
def normalize_node_kwargs_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Normalizes how operators are called: tensors first, all else by keyword, defaults left out, methods as functions.

    Our passes read arguments through `bind` and do not need it; it is for readers, diffs and third-party passes.

    It pays only for those that read the graph: no value changes.
    """
    normal: dict[Node, Bound] = graph.memo.setdefault("normal", {})
    for node in graph.each("call_function", "call_method"):
        bound = graph.bind(node)
        if bound is normal.get(node):
            continue
        if not isinstance(bound, Bound):
            rewrite.reject(bound, node)
            continue
        target = _function_of(node, bound)
        if target is None:
            rewrite.reject("it calls the operator through a Python function, and keeps its form", node)
            continue
        args, kwargs = _layout(bound)
        if target is node.target and args == node.args and kwargs == node.kwargs:
            normal[node] = bound
            continue
        again = bind_call(target, args, kwargs)
        if not isinstance(again, Bound) or not _is_same_call(again, bound):
            rewrite.reject("the normal form would bind to other arguments", node)
            continue
        normal[node] = again
        rewrite.respell(node, target, args, kwargs, again)


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
