"""Parses printed Python into a graph, with fake values for inputs that have type comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from eductor.compat import FakeTensorMode, ShapeEnv, lazy_module, new_symbol
from eductor.errors import BadGraph
from eductor.graph.text import printer
from eductor.graph.text.symbolic_sizes import read_size
from eductor.graph.values import meta
from eductor.graph.values.evaluate import propagate

_TYPE = re.compile(
    r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?:\{(?P<stride>[^}]*)\})?(?:\+(?P<offset>\w+))?(?: (?P<device>[a-z]+(?::\d+)?))??(?P<grad> grad)?$"
)
_DTYPES = {short: dtype for dtype, short in printer.DTYPES.items()}


_CONSTRUCTORS = {"slice": slice, "torch.device": torch.device, "float": float, "complex": complex}
"""The calls that the printer writes for constants."""


def from_python(text: str, root: torch.nn.Module | None = None) -> GraphModule:
    """Parses the output of `to_python`. `root` holds the modules and tensors that the text reads from `self`."""
    module = read_graph(text, root)
    _give_values(module, text)
    return module


def read_graph(text: str, root: torch.nn.Module | None = None, *, homes: Collection[str] | None = None) -> GraphModule:
    """Parses a graph without values. If `homes` are given, names are looked up only in these modules."""
    tree = ast.parse(text)
    function = next((n for n in tree.body if isinstance(n, ast.FunctionDef)), None)
    if function is None:
        raise BadGraph("the text defines no function")
    graph = Graph()
    reader = _Reader(graph, homes)
    params = function.args.args
    defaults = [None] * (len(params) - len(function.args.defaults)) + list(function.args.defaults)
    for param, default in zip(params, defaults, strict=True):
        if param.arg != "self":
            value = () if default is None else (reader.value(default),)
            reader.names[param.arg] = graph.create_node("placeholder", param.arg, value, {}, param.arg)
    for line in function.body:
        reader.line(line)
    return lazy_module(root if root is not None else torch.nn.Module(), graph)


class _Reader:
    """Reads statements into nodes."""

    def __init__(self, graph: Graph, homes: Collection[str] | None) -> None:
        self.graph = graph
        self._homes = homes
        self._found: dict[str, Any] = {}
        self.names: dict[str, Node] = {}

    def line(self, line: ast.stmt) -> None:
        if isinstance(line, ast.Return):
            self.graph.output(self.value(line.value) if line.value is not None else None)
        elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            name = line.targets[0].id
            op, target, args, kwargs = self._call(line.value)
            self.names[name] = self.graph.create_node(op, target, args, kwargs, name)
        else:
            raise BadGraph(
                f"line {line.lineno}: expected `name = call(...)` or `return ...`, found `{ast.unparse(line)}`"
            )

    def _call(self, value: ast.expr) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]]:
        attribute = _attribute_of_self(value)
        if attribute is not None:
            return "get_attr", attribute, (), {}
        if not isinstance(value, ast.Call):
            raise BadGraph(f"line {value.lineno}: `{ast.unparse(value)}` is neither a call nor an attribute of self")
        args = tuple(self.value(a) for a in value.args)
        kwargs = {str(k.arg): self.value(k.value) for k in value.keywords}
        module = _attribute_of_self(value.func)
        if module is not None:
            return "call_module", module, args, kwargs
        path = _path(value.func)
        if path is not None and path[0] in self.names:
            return "call_method", path[1], (self.names[path[0]], *args), kwargs
        target = self._find(path)
        if target is None:
            raise BadGraph(f"line {value.lineno}: cannot find `{ast.unparse(value.func)}`")
        return "call_function", target, args, kwargs

    def value(self, e: ast.expr) -> Any:
        """Evaluates a literal of the printer, with names for nodes."""
        if isinstance(e, ast.Name) and e.id in self.names:
            return self.names[e.id]
        if isinstance(e, (ast.List, ast.Tuple)):
            items = [self.value(x) for x in e.elts]
            return items if isinstance(e, ast.List) else tuple(items)
        if isinstance(e, ast.Dict):
            return {self.value(k): self.value(v) for k, v in zip(e.keys, e.values, strict=True) if k is not None}
        if isinstance(e, ast.Call) and (make := _CONSTRUCTORS.get(ast.unparse(e.func))) is not None:
            return make(*(self.value(a) for a in e.args))
        found = self._find(_path(e))
        if found is not None:
            return found
        try:
            return ast.literal_eval(e)
        except ValueError:
            raise BadGraph(f"line {e.lineno}: cannot read `{ast.unparse(e)}`") from None

    def _find(self, path: list[str] | None) -> Any:
        if path is None or (self._homes is not None and path[0] not in self._homes):
            return None
        name = ".".join(path)
        if name not in self._found:
            self._found[name] = printer.find(name)
        return self._found[name]


def _attribute_of_self(e: ast.expr) -> str | None:
    """The path of `self.a.b`, or of `operator.attrgetter('a.0')(self)`."""
    path = _path(e)
    if path is not None and path[0] == "self":
        return ".".join(path[1:])
    if isinstance(e, ast.Call) and isinstance(e.func, ast.Call) and _path(e.func.func) == ["operator", "attrgetter"]:
        return str(ast.literal_eval(e.func.args[0]))
    return None


def _path(e: ast.expr) -> list[str] | None:
    parts: list[str] = []
    while isinstance(e, ast.Attribute):
        parts.insert(0, e.attr)
        e = e.value
    return [e.id, *parts] if isinstance(e, ast.Name) else None


def _give_values(module: GraphModule, text: str) -> None:
    """Makes fake inputs of the types in the comments, with new symbols, and propagates them through the graph."""
    placeholders = module.graph.find_nodes(op="placeholder")
    types = dict(re.findall(r"^    # (\w+): (.+)$", text, flags=re.MULTILINE))
    if not placeholders or any(p.name not in types for p in placeholders):
        return
    env = ShapeEnv()
    sizes: dict[str, Any] = {}
    for symbol, hint in re.findall(r"^# (\w+) = (\d+)$", text, flags=re.MULTILINE):
        sizes[symbol] = new_symbol(env, symbol, int(hint))
    mode = FakeTensorMode(shape_env=env)
    inputs = [_value(types[p.name], sizes, mode) for p in placeholders]
    if all(value is not meta.UNKNOWN for value in inputs):
        propagate(module, inputs)


def _value(kind: str, sizes: Mapping[str, Any], mode: FakeTensorMode) -> Any:
    if kind.startswith("Sym("):
        return read_size(kind[4:-1], sizes)
    found = _TYPE.match(kind)
    if found is None or found["dtype"] not in _DTYPES:
        return meta.UNKNOWN
    shape, stride = (
        [read_size(s, sizes) for s in (found[part] or "").split(",") if s.strip()] for part in ("shape", "stride")
    )
    dtype, device = _DTYPES[found["dtype"]], found["device"] or "cpu"
    with mode:
        if found["stride"] is None:
            value = torch.empty(shape, dtype=dtype, device=device)
        else:
            value = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    return value.requires_grad_() if found["grad"] else value
