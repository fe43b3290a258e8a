"""Refuses operators that a functional graph cannot compute as eager does, and writes whose aliases no schema declares."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from eductor import compat
from eductor.autograd.captured import calls_in
from eductor.autograd.functionalize import written_by
from eductor.compat import OpOverload
from eductor.errors import Unsupported
from eductor.graph import Bound, bind, effect_of, is_row_major, requires_grad, value_of
from eductor.graph.effects.bases import storage_node
from eductor.graph.values.meta import is_backward

aten = torch.ops.aten


def refuse_operators(module: GraphModule, *, redraws: bool, exact: bool) -> None:
    """Raises for the first one; with `redraws` random numbers need not be eager's, with `exact` bits count."""
    refuse_seen_sharing(module)
    if exact:
        refuse_unknown_layouts(module)
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if compat.has_effects(node.target):
            # Tokens keep them in order, which this trace does not thread through.
            raise Unsupported(f"the operator {node.target}, which has effects besides its result")
        if isinstance(node.target, OpOverload) and _writes_besides_out(node.target):
            # Functionalization takes the first written arguments for the values of `out`.
            raise Unsupported(f"the operator {node.target}, which writes other arguments besides those for its results")
        if not redraws and _draws_into_gaps(node):
            raise Unsupported("normal_ on a tensor with gaps in its memory, which eager fills in another order")
        if exact and node.target in _VALUES and _values_alone(node):
            raise Unsupported(
                f"values of {node.target} without vectors, in the profile 'exact': eager computes no vectors, and rounds differently"
            )
        if node.target is aten.linalg_eig.default and _differentiates_vectors(node):
            raise Unsupported(
                f"the gradient of {node.target}: eager raises where it depends on the phase of its vectors"
            )


def _name_of(target: Any) -> str:
    return getattr(target, "__name__", "")


def is_decomposed(target: Any) -> bool:
    """Whether torch's Python decomposition of an operator rounds differently from eager's kernel."""
    return _name_of(target).startswith(_DECOMPOSED)


def _needs_python(target: Any) -> bool:
    """Whether a trace has eager's draws, or its check of values, only through torch's Python decompositions."""
    name = _name_of(target)
    return "dropout" in name or name == "one_hot"


def refuse_inexact(module: GraphModule, *, symbolic: bool) -> None:
    """Raises where the captured graph calls an operator whose trace rounds differently from eager."""
    calls = list(calls_in(module))
    apart = next((_name_of(call.target) for call in calls if is_decomposed(call.target)), "")
    if apart and (symbolic or any(_needs_python(call.target) for call in calls)):
        where = "with sizes that may change, or beside dropout or one_hot"
        raise Unsupported(f"{apart} {where}, in the profile 'exact': its trace rounds differently")
    for node in calls if torch.is_grad_enabled() else ():
        bound = bind(node)
        if isinstance(bound, Bound):
            _refuse_inexact_gradient(bound)


def _refuse_inexact_gradient(bound: Bound) -> None:
    if bound.packet in (aten.masked_fill, aten.masked_fill_) and requires_grad(value_of(bound["value"])):
        # Eager sums the selected elements; a trace, whose sizes cannot depend on the mask, sums zeros as well.
        raise Unsupported("the gradient of a masked_fill's value in the profile 'exact': its trace rounds differently")
    if bound.packet is aten.prod and requires_grad(value_of(bound["self"])):
        # Eager divides by the elements if none of them is zero; a trace, which cannot look, multiplies the others.
        raise Unsupported("the gradient of prod in the profile 'exact': its trace rounds differently")
    if bound.packet in _RUNNING_PRODUCTS and any(requires_grad(value_of(x)) for x in bound.arguments.values()):
        if not compat.sums_for_running_products():
            raise Unsupported(
                f"the gradient of {bound.packet} in the profile 'exact': its trace rounds differently in this torch"
            )


_RUNNING_PRODUCTS = (aten.cumprod, aten.cumprod_, aten.linalg_vander)
_DECOMPOSED = ("interpolate", "upsample_", "multi_margin_loss", "multilabel_margin_loss")


def _differentiates_vectors(node: Node) -> bool:
    """Whether a backward depends on eigenvectors that the program requested."""
    if _called(node) in ("linalg_eigvals", "eigvals"):
        return False
    seen, pending = {node}, [node]
    while pending:
        for user in pending.pop().users:
            if is_backward(user):
                return True
            if user not in seen:
                seen.add(user)
                pending.append(user)
    return False


def _called(node: Node) -> str:
    """The name of the function of the program that a node comes from."""
    functions = [fn for _, fn in node.meta.get("source_fn_stack", ())]
    return getattr(functions[-1], "__name__", str(functions[-1])) if functions else ""


_VALUES: dict[Any, int] = {aten._linalg_svd.default: 1, aten._linalg_eigh.default: 0}
"""Matrix decompositions, and the place of the values in their results: traced, they compute unrequested vectors too."""


def _values_alone(node: Node) -> bool:
    """Whether only the values are used of a decomposition that the program did not call itself."""
    used = {user.args[1] for user in node.users if user.users}
    return used == {_VALUES[node.target]} and _called(node) not in ("linalg_svd", "svd", "linalg_eigh", "eigh")


def _writes_besides_out(op: OpOverload) -> bool:
    written = [a.is_out for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return any(written) and not all(written)


def _draws_into_gaps(node: Node) -> bool:
    """Whether normal numbers fill strides that the functional copy does not have: eager's kernel then draws differently."""
    if node.target is not aten.normal_.default:
        return False
    filled = value_of(node.args[0])
    return filled.device.type == "cpu" and not filled.is_contiguous() and torch.empty_like(filled).is_contiguous()


_SPLITS = (torch.ops.aten.unsafe_split.Tensor, torch.ops.aten.unsafe_split_with_sizes.default)


def refuse_seen_sharing(module: GraphModule) -> None:
    """Raises where either the operand or the parts of such a split are written, and the others are read afterwards."""
    for split in (node for target in _SPLITS for node in module.graph.find_nodes(op="call_function", target=target)):
        sides = {_memory(split.all_input_nodes[0]), split}
        stale: set[Node] = set()
        node = split.next
        while node.op != "root":
            if stale & {_memory(operand) for operand in node.all_input_nodes}:
                raise Unsupported(f"{split.target} whose operand or parts are written while the others are in use")
            for written in sides & {_memory(x) for x in pytree.tree_leaves(written_by(node)) if isinstance(x, Node)}:
                stale |= sides - {written}
            node = node.next
        if any(side.op == "placeholder" for side in stale):
            raise Unsupported(f"{split.target} of an input, whose parts are written")


def refuse_unknown_layouts(module: GraphModule) -> None:
    """Raises where a written part of such a split has gaps of symbolic size, which no new value can have."""
    for node in module.graph.nodes:
        for part in (x for x in pytree.tree_leaves(written_by(node)) if isinstance(x, Node)):
            split, value = _memory(part), value_of(part)
            if split.target not in _SPLITS or is_row_major(value):
                continue
            if not all(type(stride) is int for stride in value.stride()):
                where = "with sizes that may change, whose parts are written, in the profile 'exact'"
                raise Unsupported(f"{split.target} {where}: they would round differently")


def _memory(node: Node) -> Node:
    """The node whose memory a value has; parts of an undeclared split count as memory of the split."""
    while True:
        node = storage_node(node)
        call = node.all_input_nodes[0] if node.target is operator.getitem else node
        if call.target in _SPLITS or not effect_of(call).shares:
            return call if call.target in _SPLITS else node
        node = call.all_input_nodes[0]
