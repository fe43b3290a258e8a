"""Operators of a traced graph that a functional graph cannot do as eager does."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from eductor import compat
from eductor.autograd.unsafe import refuse_seen_sharing
from eductor.compat import OpOverload
from eductor.errors import Unsupported
from eductor.graph.meta import value_of


def refuse_operators(module: GraphModule, *, draws_anew: bool) -> None:
    """Raises where there is one; `draws_anew` says that random numbers need not be eager's."""
    refuse_seen_sharing(module)
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if compat.has_effects(node.target):
            # They are kept in order by tokens, which this trace does not thread.
            raise Unsupported(f"the operator {node.target}, which has effects besides its result")
        if isinstance(node.target, OpOverload) and _writes_besides_out(node.target):
            # What functionalization takes for the values of `out` are those of the first arguments that are written.
            raise Unsupported(f"the operator {node.target}, which writes other arguments besides those for its results")
        if not draws_anew and _draws_into_gaps(node):
            raise Unsupported("normal_ on a tensor with gaps in its memory, which eager fills in an order of its own")


def refuse_taken_apart(module: GraphModule) -> None:
    """Raises where the captured graph calls what torch takes apart while sizes are symbols, which rounds otherwise."""
    for node in module.graph.nodes:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name.startswith(_TAKEN_APART):
            raise Unsupported(f"{name} with sizes that may change, in the profile 'exact': its trace rounds otherwise")


_TAKEN_APART = ("interpolate", "upsample_", "multi_margin_loss", "multilabel_margin_loss")


def _writes_besides_out(op: OpOverload) -> bool:
    written = [a.is_out for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return any(written) and not all(written)


def _draws_into_gaps(node: Node) -> bool:
    """Whether normal numbers fill memory that its functional copy would not have: eager's kernel draws others then."""
    if node.target is not torch.ops.aten.normal_.default:
        return False
    filled = value_of(node.args[0])
    return filled.device.type == "cpu" and not filled.is_contiguous() and torch.empty_like(filled).is_contiguous()
