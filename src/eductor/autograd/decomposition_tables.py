"""Decomposition tables: which operators are decomposed in the autograd trace, and which only after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eductor.autograd.cpu_dropout import eagers_dropouts
from eductor.compat import OpOverload
from eductor.graph.values.kernel_layouts import with_kernel_layouts

Table = dict[Any, Callable[..., Any]]


def for_autograd(table: Mapping[Any, Callable[..., Any]], *, later: bool, exact: bool = False) -> Table:
    """The table for the trace in which operators still write: those that write in place or to `out=` are decomposed later.

    With `later`, the whole table is. Operators outside of it get the strides of their kernels from the start, and with
    `exact` their roundings.
    """
    rounded = {op: fn for op, fn in eagers_dropouts().items() if op not in table} if exact else {}
    now = {} if later else {op: fn for op, fn in table.items() if not _writes_by_name(op)}
    return with_kernel_layouts(table, rounded | now)


def _writes_by_name(op: Any) -> bool:
    if not isinstance(op, OpOverload) or not op._schema.is_mutable:
        return False
    return op._schema.name.endswith("_") or any(a.is_out for a in op._schema.arguments)
