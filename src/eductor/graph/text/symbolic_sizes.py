"""Prints and parses symbolic sizes. Only arithmetic on known names is evaluated."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from eductor.errors import BadGraph

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_BINARY = {**ARITHMETIC, ast.BitAnd: operator.and_, ast.BitOr: operator.or_}
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
        return _value(ast.parse(text, mode="eval").body, known)
    except (SyntaxError, ValueError, TypeError, KeyError) as error:
        raise BadGraph(f"`{text}` is not a size in terms of {', '.join(known) or 'numbers'}: {error}") from None


def _value(e: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(e, ast.Constant) and isinstance(e.value, (bool, int, float)):
        return e.value
    if isinstance(e, ast.Name):
        return {"True": True, "False": False, **known}[e.id]
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        return -_value(e.operand, known)
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.Invert):
        return torch.sym_not(_value(e.operand, known))
    if isinstance(e, ast.BinOp):
        return _BINARY[type(e.op)](_value(e.left, known), _value(e.right, known))
    if isinstance(e, ast.Compare) and len(e.ops) == 1:
        return _COMPARISONS[type(e.ops[0])](_value(e.left, known), _value(e.comparators[0], known))
    if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and not e.keywords:
        first, *others = (_value(a, known) for a in e.args)
        function = _FUNCTIONS[e.func.id]
        for other in others:
            first = function(first, other)
        return first if others else function(first)
    raise ValueError(f"`{ast.unparse(e)}` is not supported")
