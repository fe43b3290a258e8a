"""Serializes a graph to Python text and the types of its values, and reads it back.

Its calls are limited to functions that the versions of torch and Eductor fully determine.
"""

from __future__ import annotations

import json
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from eductor.cache.values import (
    NotKept,
    Symbols,
    constant_from_data,
    constant_to_data,
    value_from_data,
    value_to_data,
)
from eductor.compat import FakeTensorMode, HigherOrderOperator, OpOverload, OpOverloadPacket
from eductor.errors import BadGraph
from eductor.graph.text.parser import read_graph
from eductor.graph.text.printer import statement, without_shadows
from eductor.graph.values.meta import AHEAD, UNKNOWN, value_of
from eductor.graph.values.module_tensors import attribute_at

HOMES = ("torch", "operator", "math")
"""The modules in which the functions that an entry calls are looked up."""


def graph_to_data(module: GraphModule, symbols: Symbols) -> dict[str, Any]:
    """A graph as plain data; raises `NotKept` unless it only makes known calls on tensors and sizes."""
    graph = without_shadows(module.graph)
    kinds: dict[str, int] = {}
    values = []
    for node in graph.nodes:
        _check(node)
        if node.op != "output":
            kind = json.dumps(value_to_data(value_of(node), symbols))
            values.append(kinds.setdefault(kind, len(kinds)))
    targets = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    code = _code(graph)
    if "unprintable(" in code:
        raise NotKept("an argument that has no text")
    return {
        "code": code,
        "kinds": list(map(json.loads, kinds)),
        "values": values,
        "constants": {path: constant_to_data(_constant(module, path)) for path in sorted(targets)},
        "ahead": [node.name for node in graph.nodes if AHEAD in node.meta],
    }


def graph_from_data(data: dict[str, Any], symbols: Symbols, mode: FakeTensorMode) -> GraphModule:
    """Reads a graph, with fake values in a mode; raises `NotKept` for an unknown call."""
    root = torch.nn.Module()
    for path, constant in data["constants"].items():
        root.register_buffer(path, constant_from_data(constant), persistent=False)
    module = read_graph(data["code"], root, homes=HOMES)
    nodes = list(module.graph.nodes)
    if len(data["values"]) != len(nodes) - 1:
        raise BadGraph(f"{len(nodes)} nodes have {len(data['values'])} values")
    shared = [value_from_data(kind, symbols, mode) for kind in data["kinds"]]
    ahead = set(data["ahead"])
    for node, k in zip(nodes, data["values"], strict=False):
        _check(node)
        # Inputs must not share a fake value; nodes may, as theirs are only read.
        value = value_from_data(data["kinds"][k], symbols, mode) if node.op == "placeholder" else shared[k]
        if value is not UNKNOWN:
            node.meta["val"] = value
        if node.name in ahead:
            node.meta[AHEAD] = True
    return module


def _code(graph: Graph) -> str:
    inputs = [node.name for node in graph.find_nodes(op="placeholder")]
    attributes = ["self"] if graph.find_nodes(op="get_attr") else []
    lines = [f"    {statement(node)}" for node in graph.nodes if node.op != "placeholder"]
    return "\n".join((f"def forward({', '.join((*attributes, *inputs))}):", *lines))


def _check(node: Node) -> None:
    if not is_known(node):
        raise NotKept(f"a call of {node.target}")


def _constant(module: GraphModule, path: str) -> torch.Tensor:
    value = attribute_at(module, path)
    if not isinstance(value, torch.Tensor) or "." in path:
        raise NotKept(f"the attribute {path} of a graph")
    return value


NAMESPACES = ("aten", "prim", "prims", "eductor")
"""Namespaces of torch's and Eductor's operators; those of other packages may change without a version that shows it."""
BUILTINS = ("torch", "torch._C._nn")
WRITTEN = ("torch.functional", "torch.nn.functional")
"""Modules whose functions a final graph may call: C++ builtins, and Python functions."""
ARITHMETIC = frozenset(
    [
        "abs",
        "add",
        "and_",
        "ceil",
        "eq",
        "floor",
        "floordiv",
        "ge",
        "getitem",
        "gt",
        "index",
        "invert",
        "le",
        "lshift",
        "lt",
        "mod",
        "mul",
        "ne",
        "neg",
        "not_",
        "or_",
        "pos",
        "pow",
        "rshift",
        "sqrt",
        "sub",
        "truediv",
        "trunc",
        "xor",
    ]
)
"""Allowed functions of the modules `operator` and `math`."""
TOUCHES_FILES = frozenset({"from_file"})
REGIONS = (torch.ops.higher_order.tag_activation_checkpoint,)
_HOMES = ("torch", "_operator", "math", "builtins")


def is_known(node: Node) -> bool:
    """Whether a node of a final graph calls a function of values, sizes and numbers that this version of torch determines."""
    target: Any = node.target
    if not (_is_plain(node.args) and _is_plain(node.kwargs)):
        return False
    if node.op == "call_method":
        return isinstance(getattr(torch.Tensor, target, None), (FunctionType, MethodDescriptorType))
    if node.op != "call_function":
        return node.op != "call_module"
    if isinstance(target, OpOverload):
        return target.namespace in NAMESPACES and target.overloadpacket.__name__ not in TOUCHES_FILES
    home, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    if isinstance(target, BuiltinFunctionType):
        return name in ARITHMETIC if home in ("_operator", "math") else home in BUILTINS and name not in TOUCHES_FILES
    return isinstance(target, FunctionType) and (home in WRITTEN or (home == "torch" and "sym_" in name))


def _is_plain(argument: Any) -> bool:
    """Whether an argument, or each part of it, is a value: no function and no module."""
    if isinstance(argument, (list, tuple)):
        return all(map(_is_plain, argument))
    if isinstance(argument, dict):
        return all(map(_is_plain, argument.values()))
    return isinstance(argument, Node) or not (callable(argument) or isinstance(argument, ModuleType))


def belongs_to_torch(target: Any) -> bool:
    """Whether a function that a captured graph calls is torch's own."""
    if isinstance(target, OpOverload):
        return target.namespace in NAMESPACES
    if isinstance(target, OpOverloadPacket):
        return target._qualified_op_name.partition("::")[0] in NAMESPACES
    if isinstance(target, HigherOrderOperator):
        return target in REGIONS
    if not isinstance(target, (FunctionType, BuiltinFunctionType, MethodDescriptorType, type)):
        return False
    return (getattr(target, "__module__", None) or "torch").partition(".")[0] in _HOMES
