"""Unwraps calls that functionalization wrapped: of mutable operators, and of Triton kernels; their operands are writable."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import known_equal, tensor_of
from eductor.graph.wrappers.copies import Writable, as_arguments, hand_out, writable

aten = torch.ops.aten


def functional_call(rewrite: Rewriter, node: Node, writable: Writable = writable) -> None:
    """Unwrap `auto_functionalized(op, **arguments)`: it returns the operator's results, then each argument it wrote."""
    op, arguments = node.args[0], dict(node.kwargs)
    assert isinstance(op, OpOverload)
    written = [_writable(rewrite, arguments[name], node, writable) for name in written_by(op._schema)]
    arguments.update(zip(written_by(op._schema), written, strict=True))
    call = _call(rewrite, op, op._schema, arguments, node)
    hand_out(rewrite, node, [*_returned(rewrite, op._schema, call, node), *written])


def functional_call_on_bases(rewrite: Rewriter, node: Node, writable: Writable = writable) -> None:
    """Unwrap `auto_functionalized_v2`, which names the written base tensors and describes the arguments as their views.

    It returns the operator's results, then the bases. An `out=` operator names none: all its results are new.
    """
    op, arguments = node.args[0], dict(node.kwargs)
    bases: list[Any] = list(arguments.pop("_all_bases"))  # type: ignore[arg-type]
    spec: Any = arguments.pop("_op_schema", None)
    schema: Any = schema_of(op, spec)
    allocates = any(f"_{name}_dtype" in arguments for name in written_by(schema))
    copies = [base if base is None else writable(rewrite, base, node) for base in bases]
    for name in written_by(schema):
        arguments[name] = (
            _allocation(rewrite, arguments, name, node) if allocates else _views(rewrite, arguments, name, copies, node)
        )
    call = _call(rewrite, op, schema, arguments, node)
    if allocates:
        outs = [arguments[name] for name in written_by(schema)]
        hand_out(rewrite, node, outs if len(outs) > 1 else outs[0])
    else:
        hand_out(rewrite, node, [*_returned(rewrite, schema, call, node), *copies])


def functional_kernel(rewrite: Rewriter, node: Node, writable: Writable = writable) -> None:
    """Unwrap a kernel; the wrapper names the tensors to copy, and returns a dictionary of the copies."""
    call: dict[str, Any] = dict(node.kwargs)
    written: list[str] = call.pop("tensors_to_clone")
    given = call["kwargs"]
    copies = {name: writable(rewrite, given[name], node) for name in given if name in written}
    call["kwargs"] = {**given, **copies}
    rewrite.insert(torch.ops.higher_order.triton_kernel_wrapper_mutation, before=node, **call)
    hand_out(rewrite, node, copies)


def schema_of(op: Any, spec: Any) -> Any:
    """The schema of the wrapped operator; that of a higher-order one is passed as `spec`."""
    return op._schema if isinstance(op, OpOverload) else pytree.tree_unflatten([], spec).schema


def written_by(schema: Any) -> list[str]:
    """The names of the arguments that an operator writes."""
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _writable(rewrite: Rewriter, given: Any, node: Node, writable: Writable) -> Any:
    if isinstance(given, (list, tuple)):
        return [_writable(rewrite, one, node, writable) for one in given]
    return given if given is None else writable(rewrite, given, node)


def _call(rewrite: Rewriter, op: Any, schema: Any, arguments: dict[str, Any], node: Node) -> Node:
    """Insert the call. A higher-order operator takes a tree of arguments, which its schema lists flat."""
    args = [arguments[a.name] for a in schema.arguments if not a.kwarg_only and a.name in arguments]
    kwargs = {a.name: arguments[a.name] for a in schema.arguments if a.kwarg_only and a.name in arguments}
    if not isinstance(op, OpOverload) and schema.tree_spec is not None:
        args, kwargs = pytree.tree_unflatten(args, schema.tree_spec)
    return rewrite.insert(op, *args, before=node, **kwargs)


def _returned(rewrite: Rewriter, schema: Any, call: Node, node: Node) -> list[Any]:
    """The results of the operator itself. The result of an in-place operator is its operand, as the call's node."""
    if not schema.returns:
        return [None]
    if len(schema.returns) == 1 and isinstance(call.target, OpOverload):
        return [call]
    return [rewrite.insert(operator.getitem, call, i, before=node, like=node) for i in range(len(schema.returns))]


def _allocation(rewrite: Rewriter, arguments: dict[str, Any], name: str, node: Node) -> Node:
    size, stride = (arguments.pop(f"_{name}_{part}") for part in ("size", "stride"))
    kind = {part: arguments.pop(f"_{name}_{part}") for part in ("dtype", "device")}
    return rewrite.insert(aten.empty_strided.default, list(size), list(stride), before=node, **kind)


def _views(rewrite: Rewriter, arguments: dict[str, Any], name: str, bases: list[Any], node: Node) -> Any:
    length = f"_{name}_length"
    if length not in arguments:
        return _view(rewrite, arguments, f"_{name}", bases, node)
    count = arguments.pop(length)
    return None if count is None else [_view(rewrite, arguments, f"_{name}_{i}", bases, node) for i in range(count)]


def _view(rewrite: Rewriter, arguments: dict[str, Any], prefix: str, bases: list[Any], node: Node) -> Any:
    """One written argument: a base or an alias of it, a slice of it, or any strided view of its memory."""
    index = arguments.pop(f"{prefix}_base_index")
    parts = ("alias", "slice_dim", "slice_start", "slice_end", "size", "stride", "storage_offset")
    given = {part: arguments.pop(f"{prefix}_{part}") for part in parts if f"{prefix}_{part}" in arguments}
    if index is None:
        return None
    base = bases[index]
    if "slice_dim" in given:
        where = given["slice_dim"], given["slice_start"], given["slice_end"]
        return rewrite.insert(aten.slice.Tensor, base, *where, before=node)
    if "size" in given:
        original: Any = node.kwargs["_all_bases"][index]  # type: ignore
        offset = given["storage_offset"]
        offset = offset if base is original else _offset_in_copy(rewrite, offset, original, node)
        return rewrite.insert(
            aten.as_strided.default, base, list(given["size"]), list(given["stride"]), offset, before=node
        )
    return base


def _offset_in_copy(rewrite: Rewriter, offset: Any, base: Any, node: Node) -> Any:
    """The storage offset of a view in a copy, whose own offset is 0."""
    tensor = tensor_of(base)
    assert tensor is not None
    if known_equal(tensor.storage_offset(), 0):
        return offset
    (start,) = as_arguments(rewrite, [tensor.storage_offset()], node)
    if isinstance(offset, int) and isinstance(start, int):
        return offset - start
    return rewrite.insert(operator.sub, offset, start, before=node)
