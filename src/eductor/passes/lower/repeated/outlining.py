"""Replaces regions by calls of one body, and makes the views of their results again outside."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node, map_arg

from eductor.graph import Rewriter, value_of
from eductor.graph.provenance import common_module
from eductor.graph.values.meta import set_value
from eductor.passes.lower.repeated.region import Operand, Region
from eductor.program.bodies import SHARED, STANDS_FOR, invoke_subgraph

aten = torch.ops.aten


def outline(rewrite: Rewriter, regions: Sequence[Region]) -> None:
    """Replaces each of the regions, which have equal keys, by a call of one body."""
    module = Region(regions[0].calls).body()  # earlier edits may have replaced operands
    module.meta[SHARED] = True
    copies = (node for node in module.graph.nodes if node.op == "call_function")
    for copy, *calls in zip(copies, *(region.calls for region in regions), strict=True):
        copy.meta[STANDS_FOR] = tuple(call.name for call in calls)
    module.graph.eliminate_dead_code()  # views that are read outside alone
    module.recompile()
    where, count = _modules(regions), len(regions[0].calls)
    body = rewrite.attribute(module, before=regions[0].calls[0])
    for region in regions:
        _call(rewrite, Region(region.calls), body)
    rewrite.note(f"{len(regions)} regions of {count} calls share one body{where}")


def _modules(regions: Sequence[Region]) -> str:
    """The modules that the regions are, if they are known."""
    names = [name for name in dict.fromkeys(common_module(region.calls) for region in regions) if name]
    shown = [*names[:3], "...", names[-1]] if len(names) > 5 else names
    return f": {', '.join(shown)}" * bool(names)


def _call(rewrite: Rewriter, region: Region, body: Node) -> None:
    place = region.calls[-1].next
    operands = [_operand(rewrite, operand, place) for operand in region.operands]
    call = rewrite.insert(invoke_subgraph, body, str(body.target), *operands, before=place, like=region.calls[0])
    set_value(call, tuple(map(value_of, region.results)))
    new: dict[Node, Node] = {}
    for i, result in enumerate(region.results):
        new[result] = rewrite.insert(operator.getitem, call, i, before=place, like=result)
    for view in region.chains():
        args, kwargs = _renamed(view, new)
        new[view] = rewrite.insert(view.target, *args, before=place, like=view, **kwargs)
    users = dict.fromkeys(user for old in new for user in old.users if user not in region.places)
    for user in users:
        args, kwargs = _renamed(user, new)
        rewrite.update(user, args=args, kwargs=kwargs, respelled=True)
    for old in reversed(region.calls):
        rewrite.erase(old)


def _operand(rewrite: Rewriter, operand: Operand, place: Node) -> Node:
    if isinstance(operand, Node):
        return operand
    seeds, index = operand
    return rewrite.insert(aten.slice.Tensor, seeds, 0, index, index + 1, before=place, like=seeds)


def _renamed(node: Node, new: Mapping[Node, Node]) -> tuple[Any, Any]:
    """The arguments of a node, positional and by name, with new nodes for old ones."""
    return map_arg((node.args, dict(node.kwargs)), lambda n: new.get(n, n))
