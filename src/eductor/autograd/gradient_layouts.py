"""Gradients that a trace computes by another formula than eager, laid out as eager's kernels lay them out.

Torch's trace takes interpolation apart, and differentiates `prod` as if an element were zero: both lay out the gradient
of their operand otherwise. So the operand is passed as an alias, whose gradient is copied where its layout differs.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F

from eductor.compat import is_transformed, memory_format_of
from eductor.graph.values.operand_layouts import in_layout_of

Rule = Callable[[torch.Tensor, torch.Tensor, tuple[Any, ...], dict[str, Any]], None]


def with_eagers_layout(call: Callable[..., Any], target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call; if it is one of these operators, its operand gets a gradient in eager's layout."""
    rule = _rule_of(target)
    operand = args[0] if args else kwargs.get("input")
    if rule is None or not isinstance(operand, torch.Tensor) or not _is_laid_out(operand):
        return call(target, args, kwargs)
    alias = torch.ops.aten.alias.default(operand)
    args, kwargs = ((alias, *args[1:]), kwargs) if args else ((), {**kwargs, "input": alias})
    result = call(target, args, kwargs)
    rule(alias, result, args, kwargs)
    return result


def _is_laid_out(operand: torch.Tensor) -> bool:
    """Whether an operand that is differentiated has a layout of its own."""
    return torch.is_grad_enabled() and operand.requires_grad and not operand.is_contiguous()


def _rule_of(target: Any) -> Rule | None:
    """The rule for a function, a method or an operator, by its name without an overload."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "").partition(".")[0]
    if name == "interpolate":
        return _interpolated
    return _as_quotient if name == "prod" else _in_format if name.startswith(_DECOMPOSED) else None


_DECOMPOSED = ("upsample_nearest", "_upsample_nearest_exact", "upsample_bilinear2d", "upsample_trilinear3d")
_MODES = ("nearest", "nearest-exact", "bilinear", "trilinear")


def _as_quotient(operand: torch.Tensor, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The gradient of `prod`: eager divides the result by the elements, if none is zero and no function transform runs."""
    if is_transformed(operand):
        return
    with torch.no_grad():
        is_dropped = 0 < result.dim() < operand.dim()
        dividend = result.unsqueeze(args[1] if len(args) > 1 else kwargs["dim"]) if is_dropped else result
        quotient = torch.ops.aten.div.Tensor(dividend, operand)
    operand.register_hook(lambda gradient: in_layout_of(gradient, quotient))


def _interpolated(operand: torch.Tensor, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The gradient of an interpolation in the modes that are taken apart."""
    given = signature(F.interpolate).bind(*args, **kwargs).arguments
    if given.get("mode", "nearest") in _MODES and not given.get("antialias"):
        _in_format(operand, result, args, kwargs)


def _in_format(operand: torch.Tensor, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The gradient has the memory format of the gradient of the result."""
    formats: list[torch.memory_format] = []
    result.register_hook(lambda gradient: formats.append(memory_format_of(gradient)))
    operand.register_hook(lambda gradient: gradient.contiguous(memory_format=formats[-1]))
