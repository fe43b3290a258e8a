"""Brings calls of operators to one form: tensors first, all else by keyword, defaults left out, methods as functions."""

from __future__ import annotations

import keyword
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import spellings
from eductor.graph.bind import Bound, bind_call
from eductor.graph.compare import same_value
from eductor.graph.rewriter import Rewriter
from eductor.graph.schema import Parameter, parameters
from eductor.graph.view import GraphView
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage="pre_grad", numerics="exact")
def normalize_node_kwargs_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Brings calls of operators to one form: tensors first, all else by keyword, defaults left out, methods as functions.

    Passes read arguments through `bind` and need none of this; it is for eyes, for diffs, and for passes from elsewhere.
    """
    for node in graph.each("call_function", "call_method"):
        bound = graph.bind(node)
        if not isinstance(bound, Bound):
            rewrite.reject(bound.reason, node)
            continue
        target = _function_of(node, bound)
        if target is None:
            rewrite.reject("it is spelled through Python, and keeps its form", node)
            continue
        args, kwargs = _layout(bound)
        if target is node.target and args == node.args and kwargs == node.kwargs:
            continue
        again = bind_call(target, args, kwargs)
        if not isinstance(again, Bound) or again.op is not bound.op or not same_value(again.arguments, bound.arguments):
            rewrite.reject("the normal form would be read in another way", node)
            continue
        rewrite.update(node, target=target, args=args, kwargs=kwargs, respelled=True)


def _function_of(node: Node, bound: Bound) -> Any:
    """The function that calls the operator directly; None for a call that is no direct one, and keeps its form."""
    if isinstance(node.target, OpOverload):
        return node.target
    if spellings.adapter_of(node.target) is not None and not isinstance(node.target, str):
        return None
    if isinstance(node.target, str):
        return spellings.function_of(bound.packet)
    return node.target


def _layout(bound: Bound) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Leading tensors by position, the rest by keyword, without what is a default anyway."""
    params = parameters(bound.op)
    by_position = max((i for i, p in enumerate(params) if not p.keyword_only and not _is_keyword(p)), default=-1)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for i, p in enumerate(params):
        value = bound[p.name]
        is_default = p.has_default and (p.name not in bound.given or same_value(value, p.default))
        may_lead = i == len(args) and not p.keyword_only
        if i <= by_position or (may_lead and not is_default and "Tensor" in p.kind):
            args.append(value)
        elif not is_default:
            kwargs[p.name] = value
    return tuple(args), kwargs


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
