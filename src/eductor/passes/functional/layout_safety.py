"""Whether it is observable that a value has other strides, or is a view."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.fx import Node, map_arg

from eductor.compat import FakeTensor, enable_python_dispatcher, sort_key, without_new_guards
from eductor.graph import Bound, GraphView, No, known_equal, tensor_of, value_of

aten = torch.ops.aten

RESHAPES = (
    *(aten.view.default, aten.reshape, aten.flatten, aten.unflatten, aten.squeeze, aten.unsqueeze),
    *(aten.permute, aten.transpose, aten.movedim, aten.t, aten.mT, aten.numpy_T),
)
"""Views that have every element once: elementwise functions may be computed before or after them."""

_MOST = 64
"""The most values that are followed, so that a pass stays linear."""

_KNOWN = ("aten", "prims", "eductor")
"""The namespaces of operators that read strides only where they are listed here."""
_SEES_STORAGE = {
    f"aten::{name}" for name in ("as_strided", "as_strided_copy", "as_strided_scatter", "as_strided_", "_reshape_alias")
}
_SEES_STRIDES = {
    f"aten::{name}"
    for name in ("stride", "sym_stride", "storage_offset", "sym_storage_offset", "is_contiguous", "is_pinned")
}


def may_change_strides(graph: GraphView, node: Node, value: torch.Tensor) -> Literal[True] | No:
    """Whether a node may have this value, with other strides, without an observable difference.

    It may where everything computed from it regains its layout before it can be observed: the strides are propagated
    through its users until they no longer differ.
    """
    old = tensor_of(node)
    if old is None or not isinstance(value, FakeTensor):
        return No(f"the layout of {node.name} is not known")
    if _have_same_strides(old, value):
        return True
    changed: dict[Node, Any] = {node: value}
    pending = set(node.users)
    with value.fake_mode, torch.no_grad(), enable_python_dispatcher(), without_new_guards(value.fake_mode):
        if not (verdict := _keeps_its_memory(graph, node)):
            return verdict
        while pending:
            user = min(pending, key=sort_key)  # in the order of the graph, so that all its operands are known
            pending.remove(user)
            new = _value_with(graph, user, changed)
            if isinstance(new, No):
                return new
            if _have_same_strides(value_of(user), new):
                continue
            if not (verdict := _keeps_its_memory(graph, user)):
                return verdict
            changed[user] = new
            pending.update(user.users)
            if len(changed) > _MOST:
                return No(f"too many values follow the layout of {node.name}")
    return True


def may_be_view(graph: GraphView, node: Node) -> Literal[True] | No:
    """Whether a value that owns its memory may become a view of a value without other users."""
    effects = graph.effects
    if effects.leaves(node):
        return No(f"{node.name} escapes the graph, and would be a view")
    place = effects.place(node)
    writer = next((m for m in effects.marks_between(node.next, None) if place in effects.writes(m)), None)
    return True if writer is None else No(f"{writer.name} writes {node.name}, which would be a view")


def contiguous_like(tensor: torch.Tensor, shape: Sequence[Any] | None = None) -> torch.Tensor:
    """A contiguous fake value of the same dtype and device, in its shape or in this one."""
    assert isinstance(tensor, FakeTensor)
    with tensor.fake_mode:
        return torch.empty(tensor.shape if shape is None else shape, dtype=tensor.dtype, device=tensor.device)


def _keeps_its_memory(graph: GraphView, node: Node) -> Literal[True] | No:
    """Whether no write and at most one output reaches the memory of a node: copies may become views, and views copies."""
    effects = graph.effects
    place = effects.place(node)
    if not isinstance(value_of(node), torch.Tensor):
        return True
    writer = next((m for m in effects.marks_between(node, None) if place in effects.writes(m)), None)
    if writer is not None:
        return No(f"{writer.name} writes memory of {node.name}, which would have other strides")
    if sum(effects.place(n) is place for n in graph.output.all_input_nodes) > 1:
        return No(f"several outputs may share memory with {node.name}, which would have other strides")
    return True


def _value_with(graph: GraphView, user: Node, changed: dict[Node, Any]) -> Any:
    """The value of a node with the changed values of its operands; No if it cannot be computed."""
    if user.op == "output":
        return No("the strides of an output would change, which is observable outside of the graph")
    effect = graph.effects.of(user)
    if effect.barrier or effect.writes or effect.ordered or effect.kept:
        return No(f"{user.name} may read its strides")
    if user.target is operator.getitem:
        indexed: Any = map_arg(user.args, lambda n: changed.get(n, value_of(n)))
        return operator.getitem(*indexed)
    bound = graph.bind(user)
    if not isinstance(bound, Bound) or bound.op.namespace not in _KNOWN or bound.op._schema.name in _SEES_STRIDES:
        return No(f"{user.name} may read its strides")
    if bound.op._schema.name in _SEES_STORAGE:
        return No(f"{user.name} may read its strides: it reads its storage directly")
    args, kwargs = map_arg(bound.call(), lambda n: changed.get(n, value_of(n)))
    try:
        return bound.op(*args, **kwargs)
    except (RuntimeError, ValueError):
        return No(f"{user.name} fails with other strides")


def _have_same_strides(old: Any, new: Any) -> bool:
    """Whether two values have the same strides and offset; values that are not tensors count as equal."""
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_have_same_strides, old, new))
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return not isinstance(old, torch.Tensor) and not isinstance(new, torch.Tensor)
    return known_equal(old.stride(), new.stride()) and known_equal(old.storage_offset(), new.storage_offset())
