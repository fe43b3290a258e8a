"""Fake values of nodes, and comparisons of sizes that never install a guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from eductor.compat import FakeTensor, FakeTensorMode, made_without_grad_mode, statically_known_true

UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda self: "UNKNOWN", "__bool__": lambda self: False})()
"""The value of a node without a fake value."""


BACKWARD = "is_backward"
"""The value of `partitioner_tag` on nodes that the backward made."""


def is_backward(node: Node) -> bool:
    """Whether a node belongs to the backward: in a joint graph, it runs after the caller received the outputs."""
    return node.meta.get("partitioner_tag") == BACKWARD


AHEAD = "eductor_ahead"
"""The key of a backward's node that is computed at its start and recomputed later.

Passes that merge equal values must keep both: the value is not held between them.
"""

CAME_FROM = "eductor_from"
"""The key for the names of the nodes, before the last trace or split, that a node came from."""

IN_BACKWARD = "eductor_in_backward"
"""The key for the name of the value that a joint graph's node replaces in the backward."""


def value_of(x: Any) -> Any:
    """The fake value of a node, UNKNOWN where it has none; anything that is not a node is its own value."""
    if not isinstance(x, Node):
        return x
    meta = x.meta
    if "val" in meta:
        return meta["val"]
    return meta.get("example_value", UNKNOWN)


def tensor_of(x: Any) -> torch.Tensor | None:
    """The fake tensor of a node that has one."""
    if isinstance(x, Node):  # as `value_of`, which would be a call more in the most frequent of all questions
        meta = x.meta
        x = meta["val"] if "val" in meta else meta.get("example_value")
    return x if isinstance(x, torch.Tensor) else None


def nodes_in(value: Any) -> list[Node]:
    """The nodes in nested arguments, once for each place."""
    found: list[Node] = []
    map_arg(value, found.append)
    return found


def set_value(node: Node, value: Any) -> None:
    """Stores a fake value under the names that this dialect reads."""
    if "example_value" in node.meta or any("example_value" in n.meta for n in node.all_input_nodes):
        node.meta["example_value"] = value
    node.meta["val"] = value


def known_true(condition: Any) -> bool:
    """Whether a condition on sizes is statically known to hold; installs no guard."""
    return bool(statically_known_true(condition))


def known_equal(a: Any, b: Any) -> bool:
    """Whether two sizes, or two sequences of sizes, are statically known to be equal."""
    if type(a) is int and type(b) is int:
        return a == b
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        if a is b:
            return True
        if not isinstance(a, (list, tuple)) or not isinstance(b, (list, tuple)) or len(a) != len(b):
            return False
        if {*map(type, a), *map(type, b)} <= _PLAIN:  # most sizes: compared at once, not one by one
            return list(a) == list(b)
        return all(map(known_equal, a, b))
    return known_true(a == b)


_PLAIN = {int}


def difference(a: Any, b: Any) -> str | None:
    """The first difference between two fake values, in any metadata, strides and offset included; None if equal."""
    if a is b:
        return None
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{len(a)} values and {len(b)}"
        return next((d for d in map(difference, a, b) if d), None)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and known_equal(a, b)
        return None if same else f"{a!r} and {b!r}"
    if type(a) is not type(b):
        return f"type {type(a)} and {type(b)}"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype} and {b.dtype}"
    if a.device != b.device:
        return f"device {a.device} and {b.device}"
    if a.layout != b.layout:
        return f"layout {a.layout} and {b.layout}"
    if not known_equal(tuple(a.shape), tuple(b.shape)):
        return f"shape {tuple(a.shape)} and {tuple(b.shape)}"
    if a.layout is torch.strided:
        if not known_equal(a.stride(), b.stride()):
            return f"strides {a.stride()} and {b.stride()}"
        if not known_equal(a.storage_offset(), b.storage_offset()):
            return f"storage offset {a.storage_offset()} and {b.storage_offset()}"
    if (a.is_conj(), a.is_neg()) != (b.is_conj(), b.is_neg()):
        return "a conjugate or negative bit"
    return None


def is_alike_but_for_strides(a: Any, b: Any) -> bool:
    """Whether two fake values differ in their strides and storage offset at most."""
    return (difference(a, b) or "strides").startswith(("strides", "storage offset"))


def row_major_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of a new tensor of this shape; a size of 0 counts as 1, as in torch."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (size if not isinstance(size, int) else max(size, 1))
    return tuple(reversed(strides))


def is_row_major(tensor: torch.Tensor) -> bool:
    """Whether a tensor is known to have row-major strides, as a new one does."""
    return known_equal(tuple(tensor.stride()), row_major_strides(tensor.shape))


def metadata_key(given: Any) -> tuple[Any, ...]:
    """A key of arguments, as far as a trace depends on them: the metadata of tensors, and the other values themselves."""
    if isinstance(given, Node):
        return metadata_key(value_of(given))
    if isinstance(given, torch.Tensor):
        geometry = (tuple(given.shape), tuple(given.stride()), given.storage_offset())
        bits = (given.is_conj(), given.is_neg())
        known_value = id(getattr(given, "constant", None))  # a constant of the graph, which may be read
        return ("tensor", given.dtype, given.device, given.layout, geometry, bits, known_value)
    if isinstance(given, (list, tuple)):
        return (type(given).__name__, *(metadata_key(x) for x in given))
    if isinstance(given, dict):
        return ("dict", *((k, metadata_key(x)) for k, x in given.items()))
    return (type(given).__name__, repr(given) if isinstance(given, (float, complex)) else given)


def hint_of(size: Any) -> Any:
    """The value that a symbolic size had when its graph was captured; anything else is returned unchanged."""
    return size.node.hint if isinstance(size, (torch.SymInt, torch.SymFloat)) else size


def results_of(module: GraphModule) -> list[Any]:
    """The outputs of a module's graph as a list."""
    found = output_of(module)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def output_of(module: GraphModule) -> Any:
    """The output of a module's graph, in its structure."""
    return module.graph.output_node().args[0]


def fake_mode_of(graph: Graph) -> FakeTensorMode | None:
    """The fake mode of the values of a graph."""
    for node in graph.nodes:
        value = value_of(node)
        if isinstance(value, FakeTensor):
            mode: FakeTensorMode = value.fake_mode
            return mode
    return None


def requires_grad(value: Any) -> bool:
    """Whether a value is a tensor that autograd tracks.

    A view made without grad mode reports `requires_grad` as soon as its base does, but is not tracked.
    """
    return isinstance(value, torch.Tensor) and value.requires_grad and not made_without_grad_mode(value)
