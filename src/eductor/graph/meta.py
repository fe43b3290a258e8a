"""What is known of a node's value without running it: fake values, and comparisons that never install a guard."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from eductor import compat
from eductor.compat import FakeTensor, FakeTensorMode, statically_known_true
from eductor.errors import BadGraph

UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda self: "UNKNOWN", "__bool__": lambda self: False})()
"""Stands for the value of a node that carries no fake value."""


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
    value = value_of(x)
    return value if isinstance(value, torch.Tensor) else None


def set_value(node: Node, value: Any) -> None:
    """Stores a fake value under the names that this dialect reads."""
    if "example_value" in node.meta or any("example_value" in n.meta for n in node.all_input_nodes):
        node.meta["example_value"] = value
    node.meta["val"] = value


def known_true(condition: Any) -> bool:
    """Whether a condition on sizes holds for certain; unknown counts as no, and no guard is installed."""
    return bool(statically_known_true(condition))


def known_equal(a: Any, b: Any) -> bool:
    """Whether two sizes, or two sequences of them, are equal for certain."""
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        both = isinstance(a, (list, tuple)) and isinstance(b, (list, tuple))
        return both and len(a) == len(b) and all(known_equal(x, y) for x, y in zip(a, b, strict=True))
    if type(a) is int and type(b) is int:
        return a == b
    return known_true(a == b)


def difference(a: Any, b: Any) -> str | None:
    """What tells two fake values apart for anybody who uses them, or None: all metadata, strides and offset included."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{len(a)} values and {len(b)}"
        return next((d for d in map(difference, a, b) if d), None)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = a is b or (type(a) is type(b) and known_equal(a, b))
        return None if same else f"{a!r} and {b!r}"
    for what, x, y in (
        ("type", type(a), type(b)),
        ("dtype", a.dtype, b.dtype),
        ("device", a.device, b.device),
        ("layout", a.layout, b.layout),
    ):
        if x != y:
            return f"{what} {x} and {y}"
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


def fake_mode_of(graph: Graph) -> FakeTensorMode | None:
    """The fake mode in which the values of a graph live."""
    for node in graph.nodes:
        value = value_of(node)
        if isinstance(value, FakeTensor):
            mode: FakeTensorMode = value.fake_mode
            return mode
    return None


def propagate(module: GraphModule, inputs: Iterable[Any] | None = None) -> None:
    """Gives each node its fake value; `inputs` are the values of the placeholders where they have none."""
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    given = list(inputs) if inputs is not None else [value_of(p) for p in placeholders]
    if len(given) != len(placeholders):
        raise BadGraph(f"the graph has {len(placeholders)} inputs, {len(given)} example inputs were given")
    missing = [p.name for p, v in zip(placeholders, given, strict=True) if v is UNKNOWN]
    if missing:
        raise BadGraph(
            f"no fake value for the inputs {', '.join(missing)}: give example inputs, or capture the graph with them"
        )
    mode = (
        next((v.fake_mode for v in given if isinstance(v, FakeTensor)), None) or fake_mode_of(graph) or FakeTensorMode()
    )
    for placeholder, value in zip(placeholders, given, strict=True):
        real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        placeholder.meta["val"] = mode.from_tensor(value, static_shapes=True) if real else value
    update(module, graph.nodes, mode)


def update(module: GraphModule, changed: Iterable[Node], mode: FakeTensorMode | None = None) -> int:
    """Recomputes the fake values of changed nodes and of those that depend on them, as far as anything differs.

    Returns how many nodes were recomputed.
    """
    pending = set(changed)
    computed = 0
    for node, new in reevaluated(module, pending, mode):
        computed += 1
        old = value_of(node)
        if old is UNKNOWN or difference(old, new) or _requires_grad(old) != _requires_grad(new):
            set_value(node, new)
            pending.update(node.users)
    return computed


def reevaluated(
    module: GraphModule, nodes: Collection[Node], mode: FakeTensorMode | None = None
) -> Iterator[tuple[Node, Any]]:
    """Each of the nodes, in the order of the graph, with the fake value that its operands give now.

    The nodes may grow on the way. Switches of grad mode and autocast are really made, and undone.
    """
    mode = mode or fake_mode_of(module.graph)
    if not nodes or mode is None:
        return
    contexts: dict[Node, Any] = {}
    with compat.keeping_dispatch_state(), mode, compat.enable_python_dispatcher():
        for node in module.graph.nodes:
            if is_context_switch(node.target):
                contexts[node] = node.target(*map_arg(node.args, contexts.__getitem__), **node.kwargs)
            elif node in nodes and node.op not in ("placeholder", "output"):
                value = evaluate(module, node, mode)
                if value is not UNKNOWN:
                    yield node, value


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def evaluate(module: GraphModule, node: Node, mode: FakeTensorMode) -> Any:
    """The fake value of a node from those of its operands; UNKNOWN where running it would change or invent something."""
    if node.op == "get_attr":
        value: Any = module
        for atom in str(node.target).split("."):
            value = getattr(value, atom)
        return mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else UNKNOWN
    if node.op == "call_module":
        return UNKNOWN
    args, kwargs = map_arg((node.args, node.kwargs), value_of)
    flat = [value_of(n) for n in node.all_input_nodes]
    if any(v is UNKNOWN for v in flat) or "unbacked_bindings" in node.meta or _changes_metadata(node):
        return UNKNOWN
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _changes_metadata(node: Node) -> bool:
    """`t_`, `resize_` and their like would change the fake value of their operand a second time."""
    if isinstance(node.target, compat.OpOverload):
        return torch.Tag.inplace_view in node.target.tags
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    packet = getattr(torch.ops.aten, name, None) if name.endswith("_") and not name.startswith("__") else None
    return packet is not None and any(torch.Tag.inplace_view in getattr(packet, o).tags for o in packet.overloads())


_SWITCHES: frozenset[Any] = frozenset(
    {
        torch._C._set_grad_enabled,
        torch.amp.autocast_mode._enter_autocast,
        torch.amp.autocast_mode._exit_autocast,
    }
)


def is_context_switch(target: Any) -> bool:
    """Whether a target switches grad mode or autocast for what follows it."""
    try:
        return target in _SWITCHES
    except TypeError:
        return False
