"""The figures of a bench as a table."""

from __future__ import annotations

from typing import Any

from eductor.measure.bench import Measured
from eductor.measure.ways import OURS, STOCK
from eductor.observe.table import as_text

HEADER = ("model", "way", "ms", "speed", "cold, s", "warm, s", "MiB", "error")


def as_table(measured: Measured) -> str:
    """A line for each way of each model, with speed relative to Inductor; then the geometric means beside Inductor."""
    rows = []
    for name, row in measured.rows.items():
        stock = row[STOCK]["milliseconds"]
        for i, (way, figures) in enumerate(row.items()):
            cells = (
                f"{figures['milliseconds']:.2f}",
                f"{stock / figures['milliseconds']:.2f}",
                _number(figures.get("cold"), "{:.1f}"),
                _number(figures.get("warm"), "{:.1f}"),
                _number(figures["memory"], "{:.2f}", 2**20),
                f"{figures['error']:.1e}",
            )
            rows.append(("" if i else name, way, *cells))
    failed = "".join(f"\nNot measured: {row}: {reason}" for row, reason in measured.failures.items())
    return f"{as_text(HEADER, rows)}\n\n{means(measured)}{failed}"


def means(measured: Measured) -> str:
    """The geometric means, in words."""
    time, parts = measured.mean("milliseconds"), list[str]()
    if time is not None:
        parts.append(f"{1 / time:.2f} times the speed")
    for figure, text in (("cold", "cold compile time"), ("warm", "warm compile time"), ("memory", "memory")):
        mean = measured.mean(figure)
        if mean is not None:
            parts.append(f"{mean:.2f} of the {text}")
    return f"Geometric means of {OURS} beside {STOCK}: {', '.join(parts)}."


def _number(value: Any, form: str, unit: float = 1) -> str:
    return "" if value is None else form.format(value / unit)
