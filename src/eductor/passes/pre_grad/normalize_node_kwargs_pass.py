"""Brings calls of operators to one form: tensors first, all else by keyword, defaults left out, methods as functions."""

from __future__ import annotations

import functools
import keyword
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph.reading import spellings
from eductor.graph.reading.bind import Bound, bind_call
from eductor.graph.reading.schema import Parameter, parameters
from eductor.graph.rewriter import Rewriter
from eductor.graph.text.compare import same_value
from eductor.graph.view import GraphView
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage="pre_grad", numerics="exact")
def normalize_node_kwargs_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Brings calls of operators to one form: tensors first, all else by keyword, defaults left out, methods as functions.

    Passes read arguments through `bind` and need none of this; it is for eyes, for diffs, and for passes from
    elsewhere.

    It pays for whoever reads the graph after it: nothing that is computed changes.
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
            rewrite.reject("it is spelled through Python, and keeps its form", node)
            continue
        args, kwargs = _layout(bound)
        if target is node.target and args == node.args and kwargs == node.kwargs:
            normal[node] = bound
            continue
        again = bind_call(target, args, kwargs)
        if not isinstance(again, Bound) or not _is_same_call(again, bound):
            rewrite.reject("the normal form would be read in another way", node)
            continue
        normal[node] = again
        rewrite.respell(node, target, args, kwargs, again)


def _function_of(node: Node, bound: Bound) -> Any:
    """The function that calls the operator directly; None for a call that is no direct one, and keeps its form."""
    if isinstance(node.target, OpOverload):
        return node.target
    if isinstance(node.target, str):
        return _function(bound.packet)
    return node.target if spellings.adapter_of(node.target) is None else None


_function = functools.cache(spellings.function_of)


def _is_same_call(again: Bound, bound: Bound) -> bool:
    """Whether two readings are of one operator with the same arguments, of which most are the very same objects."""
    return again.op is bound.op and all(
        value is (known := bound[name]) or same_value(value, known) for name, value in again.arguments.items()
    )


def _layout(bound: Bound) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Leading tensors by position, the rest by keyword, without what is a default anyway."""
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
    """Up to which parameter all must be given by position; which may be, where all in front of them are."""
    params = parameters(op)
    by_position = max((i for i, p in enumerate(params) if not p.keyword_only and not _is_keyword(p)), default=-1)
    return by_position, frozenset(p.name for p in params if not p.keyword_only and "Tensor" in p.kind)


def _is_keyword(p: Parameter) -> bool:
    """`from` cannot be spelled as a keyword, and a function calls `self` something else."""
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
