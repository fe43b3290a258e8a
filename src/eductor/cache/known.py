"""The functions that a cached graph may call: those that the versions of torch and Eductor fully determine."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from eductor.compat import HigherOrderOperator, OpOverload, OpOverloadPacket

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
    if not all(map(_is_plain, pytree.tree_leaves((node.args, node.kwargs)))):
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
    return isinstance(argument, Node) or not (callable(argument) or isinstance(argument, ModuleType))


def is_told_by_torch(target: Any) -> bool:
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
