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
from eductor.ops.versions import stated_versions

HOMES = ("torch", "operator", "math")
"""The modules in which the functions that an entry calls are looked up."""


def graph_to_data(module: GraphModule, symbols: Symbols) -> dict[str, Any]:
    """A graph with the bodies of its operators as plain data; raises `NotKept` unless it only makes known calls on tensors and sizes."""
    graph = without_shadows(module.graph)
    kinds: dict[str, int] = {}
    values = []
    for node in graph.nodes:
        _check(node)
        if node.op != "output":
            kind = json.dumps(value_to_data(value_of(node), symbols))
            values.append(kinds.setdefault(kind, len(kinds)))
    targets = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    held = {path: _held(module, path) for path in sorted(targets)}
    code = _code(graph)
    if "unprintable(" in code:
        raise NotKept("an argument that has no text")
    return {
        "code": code,
        "kinds": list(map(json.loads, kinds)),
        "values": values,
        "constants": {path: constant_to_data(x) for path, x in held.items() if isinstance(x, torch.Tensor)},
        "bodies": {path: graph_to_data(x, symbols) for path, x in held.items() if isinstance(x, GraphModule)},
        "ahead": [node.name for node in graph.nodes if AHEAD in node.meta],
    }


def graph_from_data(data: dict[str, Any], symbols: Symbols, mode: FakeTensorMode) -> GraphModule:
    """Reads a graph, with fake values in a mode; raises `NotKept` for an unknown call."""
    root = torch.nn.Module()
    for path, constant in data["constants"].items():
        root.register_buffer(path, constant_from_data(constant), persistent=False)
    for path, body in data["bodies"].items():
        root.add_module(path, graph_from_data(body, symbols, mode))
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


def _held(module: GraphModule, path: str) -> torch.Tensor | GraphModule:
    """A constant, or the body of an operator."""
    value = attribute_at(module, path)
    if not isinstance(value, (torch.Tensor, GraphModule)) or "." in path:
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
REGIONS = frozenset({"tag_activation_checkpoint", "autograd_function_apply"})
"""Higher-order operators of captured graphs, which a trace replaces by what their bodies do."""
CONTROL_FLOW = frozenset({"cond", "while_loop", "while_loop_stack_output", "scan", "associative_scan", "map_impl"})
"""Higher-order operators of all graphs, which their bodies and arguments fully determine."""
WRAPPERS = frozenset({"auto_functionalized", "auto_functionalized_v2"})
"""Higher-order operators of final graphs: calls of an operator that writes, which is their first argument."""
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
        return _is_of_known_version(target) and target.overloadpacket.__name__ not in TOUCHES_FILES
    if isinstance(target, HigherOrderOperator):
        return _is_named(target, CONTROL_FLOW | WRAPPERS)
    home, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    if isinstance(target, BuiltinFunctionType):
        return name in ARITHMETIC if home in ("_operator", "math") else home in BUILTINS and name not in TOUCHES_FILES
    return isinstance(target, FunctionType) and (home in WRITTEN or (home == "torch" and "sym_" in name))


def _is_plain(argument: Any) -> bool:
    """Whether an argument, or each part of it, is a value or an operator of a known version: no other function, no module."""
    if isinstance(argument, (list, tuple)):
        return all(map(_is_plain, argument))
    if isinstance(argument, dict):
        return all(map(_is_plain, argument.values()))
    if isinstance(argument, OpOverload):
        return _is_of_known_version(argument)
    return isinstance(argument, Node) or not (callable(argument) or isinstance(argument, ModuleType))


def _is_named(op: HigherOrderOperator, names: frozenset[str]) -> bool:
    """Whether a higher-order operator is torch's of one of these names."""
    return type(op).__module__.partition(".")[0] == "torch" and op.name() in names


def _is_of_known_version(op: Any) -> bool:
    """Whether an operator is torch's or Eductor's, or has a stated version."""
    packet = op.overloadpacket if isinstance(op, OpOverload) else op
    name = packet._qualified_op_name
    return name.partition("::")[0] in NAMESPACES or name in stated_versions()


def belongs_to_torch(target: Any) -> bool:
    """Whether a function that a captured graph calls is torch's own, or an operator that states a version."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return _is_of_known_version(target)
    if isinstance(target, HigherOrderOperator):
        return _is_named(target, REGIONS | CONTROL_FLOW)
    if not isinstance(target, (FunctionType, BuiltinFunctionType, MethodDescriptorType, type)):
        return False
    return (getattr(target, "__module__", None) or "torch").partition(".")[0] in _HOMES
