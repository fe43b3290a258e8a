"""Describes fake values: dtype, shape, strides, device and bytes."""

from __future__ import annotations

from typing import Any

import torch

from eductor.graph.values.meta import UNKNOWN

NOTHING: dict[str, Any] = {"value": None, "shape": None, "dtype": None, "stride": None, "device": None, "bytes": None}


def described(value: Any) -> dict[str, Any]:
    """The fields of a node that describe its value."""
    if isinstance(value, torch.Tensor):
        is_strided = value.layout is torch.strided
        return {
            "value": _text(value),
            "shape": [str(n) for n in value.shape],
            "dtype": _dtype(value),
            "stride": [str(n) for n in value.stride()] if is_strided else None,
            "device": str(value.device),
            "bytes": _bytes(value),
        }
    if value is UNKNOWN or value is None:
        return NOTHING
    sizes = [_bytes(v) for v in value if isinstance(v, torch.Tensor)] if isinstance(value, (list, tuple)) else [None]
    known = None if not sizes or None in sizes else sum(n for n in sizes if n is not None)
    return {**NOTHING, "value": _text(value), "bytes": known}


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_text, value))})"
    return str(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else type(value).__name__


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _bytes(value: torch.Tensor) -> int | None:
    if not all(isinstance(n, int) for n in value.shape):
        return None
    return value.numel() * value.element_size()
