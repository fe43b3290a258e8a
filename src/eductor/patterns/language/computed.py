"""Expressions over the names of a pattern, such as `x.shape[0] * 2`: parsed, not executed."""

from __future__ import annotations

import ast
import functools
from typing import Any

from eductor.errors import BadPattern
from eductor.graph import tensor_of
from eductor.graph.text.symbolic_sizes import ARITHMETIC
from eductor.patterns.match.constants import plain


def evaluated(expression: str, bindings: dict[str, Any]) -> Any:
    """What an expression of names, `x.shape[i]`, `x.dtype`, `x.device`, numbers and arithmetic gives."""
    try:
        return _evaluate(_parsed(expression), bindings, expression)
    except (TypeError, ArithmeticError):  # a dimension that the tensor does not have, a division by zero
        return None


@functools.cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _evaluate(e: ast.expr, bindings: dict[str, Any], whole: str) -> Any:
    if isinstance(e, ast.Constant):
        return e.value
    if isinstance(e, ast.Name) and e.id in bindings:
        return plain(bindings[e.id])
    if isinstance(e, ast.BinOp) and type(e.op) in ARITHMETIC:
        return ARITHMETIC[type(e.op)](_evaluate(e.left, bindings, whole), _evaluate(e.right, bindings, whole))
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        return -_evaluate(e.operand, bindings, whole)
    if isinstance(e, ast.Attribute) and isinstance(e.value, ast.Name) and e.attr in ("shape", "dtype", "device"):
        tensor = tensor_of(bindings.get(e.value.id))
        if tensor is not None:
            return tensor.shape if e.attr == "shape" else getattr(tensor, e.attr)
    if isinstance(e, ast.Subscript):
        index = _evaluate(e.slice, bindings, whole)
        sizes = _evaluate(e.value, bindings, whole)
        return sizes[index] if -len(sizes) <= index < len(sizes) else None
    raise BadPattern(
        f"the expression {whole!r} has {ast.unparse(e)!r}: it may have names of the pattern, x.shape[i], x.dtype, "
        "x.device, numbers and arithmetic."
    )
