"""Prints and parses symbolic sizes. Only arithmetic and conditions on known names are evaluated."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from eductor.errors import BadGraph

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Eq": operator.eq,
    "Ne": operator.ne,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "ToFloat": torch.sym_float,
}

_SYMBOL = re.compile(r"\b[su]\d+\b")


def spell_size(size: Any, names: Mapping[str, str]) -> str:
    """Prints a size or a condition on sizes, with symbols renamed by `names`."""
    return _SYMBOL.sub(lambda found: names.get(found[0], found[0]), str(size))


def read_size(text: str, known: Mapping[str, Any]) -> Any:
    """Parses a number, size or condition in terms of known names."""
    text = text.strip()
    if text.removeprefix("-").isdecimal():
        return int(text)
    if text in known:
        return known[text]
    try:
        return evaluate(ast.parse(text, mode="eval").body, known)
    except (SyntaxError, ValueError, TypeError, LookupError) as error:
        raise BadGraph(f"`{text}` is not a size in terms of {', '.join(known) or 'numbers'}: {error}") from None


def evaluate(e: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of an expression of names, numbers and `x.shape[i]`, `x.dtype`, `x.device`; ValueError for any other."""
    if isinstance(e, ast.Constant) and isinstance(e.value, (bool, int, float)):
        return e.value
    if isinstance(e, ast.Name) and e.id in known:
        return known[e.id]
    if isinstance(e, ast.Attribute) and e.attr in ("shape", "dtype", "device"):
        tensor = evaluate(e.value, known)
        if isinstance(tensor, torch.Tensor):
            return getattr(tensor, e.attr)
    if isinstance(e, ast.Subscript):
        return evaluate(e.value, known)[evaluate(e.slice, known)]
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        return -evaluate(e.operand, known)
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.Invert):
        return torch.sym_not(evaluate(e.operand, known))
    if isinstance(e, ast.BinOp) and type(e.op) in _BINARY:
        return _BINARY[type(e.op)](evaluate(e.left, known), evaluate(e.right, known))
    if isinstance(e, ast.Compare) and len(e.ops) == 1:
        return _COMPARISONS[type(e.ops[0])](evaluate(e.left, known), evaluate(e.comparators[0], known))
    if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in _FUNCTIONS and not e.keywords:
        first, *others = (evaluate(a, known) for a in e.args)
        function = _FUNCTIONS[e.func.id]
        for other in others:
            first = function(first, other)
        return first if others else function(first)
    raise ValueError(f"`{ast.unparse(e)}` is not supported")
