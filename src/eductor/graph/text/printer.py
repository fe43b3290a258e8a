"""Prints a graph as stable, runnable Python with types in comments; `eductor.graph.text.parser` reads it back."""

from __future__ import annotations

import functools
import importlib
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from eductor.compat import HigherOrderOperator, OpOverload, OpOverloadPacket
from eductor.graph.snapshot import copy_of
from eductor.graph.text.symbolic_sizes import spell_size
from eductor.graph.values.meta import UNKNOWN, row_major_strides, value_of

HEADER = "import operator\n\nimport torch\n"

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def to_python(graph: Graph, name: str = "forward") -> str:
    """Prints a graph as the source of a module that defines one function."""
    sizes = "".join(f"# s{i} = {hint}\n" for i, hint in enumerate(_symbols(graph).values()))
    return f"{HEADER}\n{sizes}\n{to_function(graph, name)}"


def to_function(graph: Graph, name: str = "forward") -> str:
    """Prints a graph as one function, one line per node."""
    graph = without_shadows(graph)
    lines = [line for _, line in _lines(graph)]
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    params = ["self"] if _needs_self(graph) else []
    params += [p.name + (f"={literal(p.args[0])}" if p.args else "") for p in placeholders]
    names = symbol_names(graph)
    types = [f"    # {p.name}: {t}" for p in placeholders if (t := type_of(value_of(p), names))]
    return "\n".join([f"def {name}({', '.join(params)}):", *types, *lines]) + "\n"


def without_shadows(graph: Graph) -> Graph:
    """The graph itself, or a copy in which no node shadows a name that the text needs."""
    taken = {"torch", "operator", "self", "slice", "float", "complex"}
    if not any(node.name in taken for node in graph.nodes):
        return graph
    copy = copy_of(graph)
    for node in copy.nodes:
        if node.name in taken:
            node._rename(f"{node.name}_")
    return copy


def around(graph: Graph, node: Node | str | None, lines: int = 10) -> str:
    """About ten lines of the graph with an arrow at the place; the end of the graph where the place is unknown."""
    rows = list(_lines(graph, inputs=True))
    wanted = node.name if isinstance(node, Node) else node
    at = next((i for i, (n, _) in enumerate(rows) if n.name == wanted), None)
    middle = len(rows) - 1 if at is None else at
    first = max(0, min(middle - lines // 2, len(rows) - lines))
    shown = rows[first : first + lines]
    return "\n".join(f"{'->' if at is not None and n.name == wanted else '  '}{text}" for n, text in shown)


def _lines(graph: Graph, inputs: bool = False) -> Iterator[tuple[Node, str]]:
    names = symbol_names(graph)
    for node in graph.nodes:
        if node.op == "placeholder":
            if inputs:
                yield node, f"    # {node.name}: {type_of(value_of(node), names) or 'an input'}"
            continue
        text = statement(node)
        kind = type_of(value_of(node), names) if node.op != "output" else ""
        yield node, f"    {text}" + (f"  # {kind}" if kind else "")


def statement(node: Node) -> str:
    """A node as an assignment, without its type."""
    return assignment(node.name, node.op, node.target, node.args, node.kwargs)


def assignment(name: str, op: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The assignment of a node with this target and these arguments."""
    if op == "output":
        return f"return {literal(args[0])}"
    if op == "get_attr":
        return f"{name} = {_of_self(str(target))}"
    given = [literal(a) for a in args]
    if op == "call_method":
        callee, given = f"{given[0]}.{target}", given[1:]
    elif op == "call_module":
        callee = _of_self(str(target))
    else:
        callee = path_of(target)
    given += [f"{k}={literal(v)}" for k, v in kwargs.items()]
    return f"{name} = {callee}({', '.join(given)})"


def _of_self(path: str) -> str:
    """An attribute of the module; names that are numbers, as in module lists, need `attrgetter`."""
    spelled = all(part.isidentifier() for part in path.split("."))
    return f"self.{path}" if spelled else f"operator.attrgetter({path!r})(self)"


def _needs_self(graph: Graph) -> bool:
    return any(n.op in ("get_attr", "call_module") for n in graph.nodes)


def literal(value: Any) -> str:
    """Python source that evaluates to a constant, or the name of a node."""
    if isinstance(value, Node):
        return value.name
    if isinstance(value, (list, tuple)):
        inner = ", ".join(literal(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    if value is Ellipsis:
        return "..."
    if isinstance(value, slice):
        return f"slice({literal(value.start)}, {literal(value.stop)}, {literal(value.step)})"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if callable(value):
        return path_of(value)
    return f"unprintable({str(value)!r})"


def path_of(target: Any) -> str:
    """A dotted path that `find` resolves to a callable."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return f"torch.ops.{target}"
    if isinstance(target, HigherOrderOperator):
        return f"torch.ops.higher_order.{target._name}"
    return _path_of_builtin(target) if isinstance(target, BuiltinFunctionType) else _search(target)


@functools.cache
def _path_of_builtin(target: Any) -> str:
    """Cached, which keeps nothing alive: builtins live as long as the process."""
    return _search(target)


def _search(target: Any) -> str:
    name = str(getattr(target, "__name__", ""))
    module, qualified = getattr(target, "__module__", None), getattr(target, "__qualname__", name)
    homes = ["operator", "torch", "torch._C._nn", "torch.nn.functional", "torch.Tensor", "torch._C"]
    paths = [*(f"{home}.{name}" for home in homes), f"{module}.{qualified}", name]
    for path in paths:
        if find(path) is target:
            return path
    return f"unprintable({str(target)!r})"


def find(path: str) -> Any:
    """The object at a dotted path, or None."""
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    try:
        found: Any = {"torch": torch, "operator": operator}.get(parts[0]) or importlib.import_module(parts[0])
    except ImportError:
        return getattr(__import__("builtins"), path, None)
    for i, part in enumerate(parts[1:], start=2):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(parts[:i]))
            except ImportError:
                return None
    return found


def symbol_names(graph: Graph) -> dict[str, str]:
    """Names for size symbols, numbered by appearance, so that a graph prints the same wherever it was captured."""
    return {symbol: f"s{i}" for i, symbol in enumerate(_symbols(graph))}


def type_of(value: Any, names: Mapping[str, str] | None = None) -> str:
    """A fake value as a short type: `f32[2, s0]{s0, 1} cuda:0 grad`; strides only where they are not row-major."""
    return spell_size(_type_of(value), names or {})


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        text = f"{DTYPES.get(value.dtype, str(value.dtype).removeprefix('torch.'))}[{', '.join(map(str, value.shape))}]"
        if value.layout is not torch.strided:
            text += f" {value.layout}"
        else:
            if str(tuple(value.stride())) != str(row_major_strides(value.shape)):
                text += "{" + ", ".join(map(str, value.stride())) + "}"
            if str(value.storage_offset()) != "0":
                text += f"+{value.storage_offset()}"
        text += f" {value.device}" if value.device.type != "cpu" else ""
        return text + (" grad" if value.requires_grad else "")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"Sym({value})"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_type_of(v) for v in value)})"
    return "" if value is UNKNOWN or value is None else type(value).__name__


def _symbols(graph: Graph) -> dict[str, int]:
    """The free symbols of the inputs' sizes, with the sizes they had when the graph was captured."""
    found: dict[str, int] = {}
    for node in graph.find_nodes(op="placeholder"):
        value = value_of(node)
        sizes = [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]
        for size in sizes:
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol) and size.node.has_hint():
                found[str(size.node.expr)] = int(size.node.hint)
    return found
