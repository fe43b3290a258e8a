"""What unwrapped calls need: writable operands, copied where needed; sizes as arguments; their results in place of the wrapper's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Graph, Node, map_arg

from eductor.compat import OpOverload, size_as_node, symbols_of
from eductor.errors import BadGraph
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import known_equal, nodes_in, tensor_of, value_of

aten = torch.ops.aten

# Their results never alias their operands, on any engine.
ALLOCATIONS: frozenset[Any] = frozenset(
    (
        *(aten.clone, aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.full, aten.full_like),
        *(aten.new_empty, aten.new_empty_strided, aten.new_full, aten.new_ones, aten.new_zeros, aten.ones),
        *(aten.ones_like, aten.zeros, aten.zeros_like),
    )
)

Writable = Callable[[Rewriter, Node, Node], Node]
"""From a value and a call, what the call may write: the value itself, or a copy inserted before the call."""


def writable(rewrite: Rewriter, value: Node, call: Node) -> Node:
    """The value itself if writing it in the call is not observable, otherwise a copy with the same strides."""
    return value if _is_private(value, call) else _copy(rewrite, value, call)


def hand_out(rewrite: Rewriter, node: Node, result: Any) -> None:
    """Replace a node in its users by a result: a node, None, or a collection that they index."""
    for user in list(node.users):
        if user.target is operator.getitem and isinstance(result, (tuple, list, dict)):
            hand_out(rewrite, user, result[user.args[1]])  # type: ignore[index]
    if isinstance(result, Node):
        rewrite.replace(node, result)
        return
    for user in list(node.users):
        args, kwargs = map_arg((user.args, user.kwargs), lambda n: result if n is node else n)
        rewrite.update(user, args=args, kwargs=kwargs)
    rewrite.erase(node)


def _is_private(value: Node, call: Node) -> bool:
    """Whether a value is a new allocation, passed to this call once, and dead after it."""
    packet = value.target.overloadpacket if isinstance(value.target, OpOverload) else None
    if packet not in ALLOCATIONS or not known_equal(value.meta["val"].storage_offset(), 0):
        return False
    places = nodes_in((call.args, call.kwargs)).count(value)
    return places == 1 and all(user is call or (user < call and _keeps_nothing(user)) for user in value.users)


def _keeps_nothing(user: Node) -> bool:
    """Whether a node returns nothing that could share the memory of its operands."""
    return isinstance(user.target, OpOverload) and not user.target._schema.returns


def _copy(rewrite: Rewriter, value: Node, call: Node) -> Node:
    """A clone, or a copy into a view of new memory where a clone would change the strides.

    Inductor takes a `copy_` to a whole tensor as its new value, with any strides; a `copy_` to a view is a write.
    """
    tensor = tensor_of(value)
    assert tensor is not None, f"{value.name} is written, and is no tensor"
    if _clone_keeps_strides(tensor):
        return rewrite.insert(aten.clone.default, value, before=call, like=call)
    length = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    kind = {"dtype": tensor.dtype, "device": tensor.device}
    memory = rewrite.insert(
        *(aten.empty.memory_format, as_arguments(rewrite, [length], call)), before=call, like=call, **kind
    )
    geometry = as_arguments(rewrite, tensor.shape, call), as_arguments(rewrite, tensor.stride(), call)
    view = rewrite.insert(aten.as_strided.default, memory, *geometry, 0, before=call, like=call)
    return rewrite.insert(aten.copy_.default, view, value, before=call, like=call)


def _clone_keeps_strides(tensor: torch.Tensor) -> bool:
    """Whether a clone has the tensor's strides; also true for strides of 0, which no copy can keep: elements overlap."""
    if any(known_equal(stride, 0) for stride in tensor.stride()):
        return True
    return known_equal(torch.empty_like(tensor).stride(), tensor.stride())


# ---------------------------------------------------------------------------------------------- symbolic sizes as arguments


def as_arguments(rewrite: Rewriter, sizes: Iterable[Any], before: Node) -> list[Any]:
    """Each size as a number, or as a node inserted before another one."""
    return [_as_argument(rewrite, size, before) if isinstance(size, torch.SymInt) else size for size in sizes]


def _as_argument(rewrite: Rewriter, size: torch.SymInt, before: Node) -> Any:
    known = {symbol: _source(rewrite, symbol, before) for symbol in symbols_of(size)}
    last, graph = before.prev, rewrite.view.graph
    with graph.inserting_before(before):
        result = size_as_node(graph, size, known)
    while (last := last.next) is not before:
        rewrite.adopt(last, like=before)
    return result


def _source(rewrite: Rewriter, symbol: Any, before: Node) -> Node:
    """A node whose value is the symbol: an input, or the size of an operand of the graph."""
    for node in _earlier(rewrite.view.graph, before):
        value = value_of(node)
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            return node
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                return rewrite.insert(aten.sym_size.int, node, dim, before=before)
    raise BadGraph(f"no node before {before.name} has the size {symbol}")


def _earlier(graph: Graph, before: Node) -> Iterable[Node]:
    return (node for node in graph.nodes if node < before)
