"""Normalizes literals of one element and quantized regions to one spelling."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.graph import Bound, GraphView, Rewriter
from eductor.graph.snapshot import attribute_or_none, copy_of
from eductor.passes.joint.uniform_values import literal_of
from eductor.pipeline import f32, rule_pass

aten = torch.ops.aten
hops = torch.ops.higher_order


@rule_pass(stage="joint", numerics="exact")
def canonicalize_aten_ir_passes() -> None:
    """Normalizes literals of one element and quantized regions to one spelling.

    Everything else is read as it is, which costs less than rewriting it: `t`, `transpose` and `permute`, `_unsafe_view`
    and `view`, negative dims, overloads for numbers, keywords. Passes read calls by their schema, and patterns and views
    know which operators are equivalent.

    It pays through later passes, which can then read these calls.
    """


@canonicalize_aten_ir_passes.rule(aten.lift_fresh_copy)
def literal(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """Replaces a literal tensor of one element, `torch.tensor(2.0)`, by a `full`."""
    bound = graph.bind(node)
    source = bound["self"] if isinstance(bound, Bound) else None
    if not isinstance(source, Node) or source.op != "get_attr":
        rewrite.reject("it is not a literal of the program", node)
        return
    value = attribute_or_none(graph.module, str(source.target))
    is_plain = isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout is torch.strided
    if not is_plain or value.numel() != 1:
        rewrite.reject("it has more than one element, or is not a dense CPU tensor", node)
        return
    number = literal_of(value.detach())
    if number is None:
        rewrite.reject("no Python number represents its value exactly", node)
    else:
        rewrite.replace(node, aten.full, list(value.shape), number, dtype=value.dtype, device=value.device)


@canonicalize_aten_ir_passes.rule(hops.invoke_quant_packed)
def quantized_region(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """Moves the options of a quantized region from its arguments to its metadata, and unwraps a single result."""
    options, scheme = node.kwargs.get("quant_options"), node.kwargs.get("scheme")
    region, *operands = node.args
    body = attribute_or_none(graph.module, str(region.target)) if isinstance(region, Node) else None
    if not isinstance(options, Node) or options.all_input_nodes or not isinstance(options.target, type):
        rewrite.reject("its options are not known", node)
        return
    if not isinstance(body, GraphModule):
        rewrite.reject("its region is not known", node)
        return
    results = body.graph.output_node().args[0]
    is_single = isinstance(results, (list, tuple)) and len(results) == 1
    if is_single and all(user.target is operator.getitem for user in node.users):
        region = rewrite.attribute(_bare(body), before=node)
    keywords = {} if scheme is None else {"scheme": scheme}
    new = rewrite.insert(hops.invoke_quant, region, *operands, before=node, like=node, **keywords)
    new.meta["quant_options"] = options.target(*options.args, **options.kwargs)
    for user in list(node.users) if region is not node.args[0] else ():
        rewrite.replace(user, new)
    if node.users:
        rewrite.replace(node, new)
    else:
        rewrite.erase(node)


def _bare(body: GraphModule) -> GraphModule:
    """A copy of a region's body that returns its only result without a tuple."""
    bare = GraphModule(body, copy_of(body.graph))
    output: Any = bare.graph.output_node()
    output.args = tuple(output.args[0])
    bare.recompile()
    return bare


@canonicalize_aten_ir_passes.example
def literal_scale(x: torch.Tensor = f32(4)) -> torch.Tensor:
    return x * torch.tensor(0.5)


@canonicalize_aten_ir_passes.refuses("more than one element")
def literal_vector(x: torch.Tensor = f32(2)) -> torch.Tensor:
    return x * torch.tensor([0.5, 1.0])
