"""The strides that torch's code generator chose for the outputs of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eductor.compat import FakeTensorMode


def output_strides(compiled: Any, mode: FakeTensorMode | None) -> Sequence[Sequence[Any] | None] | None:
    """The strides as numbers and symbols, parsed from text; None where the compiled graph keeps those of the graph."""
    found = getattr(compiled, "output_strides", None)
    if not found:
        return None
    return [None if strides is None else tuple(_size(x, mode) for x in strides) for strides in found]


def _size(text: Any, mode: FakeTensorMode | None) -> Any:
    if isinstance(text, int) or str(text).lstrip("-").isdigit():
        return int(text)
    assert mode is not None
    assert mode.shape_env is not None
    return mode.shape_env.deserialize_symexpr(text)
