"""A plan as text for a terminal: tables of saved and recomputed values, and the totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eductor.partition.plan import Plan, PlanEntry

FREE = ("an input", "a view")
"""Reasons of free values, which a table only counts."""


def as_text(plan: Plan) -> str:
    """The whole plan as text."""
    return f"{_table('saved', plan.saved)}\n\n{_table('recomputed', plan.again)}\n\n{summary(plan)}"


def summary(plan: Plan) -> str:
    """The totals, in a sentence."""
    held = "" if plan.peak is None else f", with a peak of {plan.peak:,} bytes"
    return (
        f"{len(plan.saved)} values of {plan.bytes:,} bytes are saved, {len(plan.again)} are recomputed; this takes "
        f"{1e6 * plan.seconds:.1f} us by estimate{held}."
    )


def _table(title: str, entries: Sequence[PlanEntry]) -> str:
    rows = [(title, "bytes", "us", "instead", "why")]
    listed = [entry for entry in entries if entry.reason not in FREE]
    for entry in sorted(listed, key=lambda e: -e.bytes):
        instead = "" if entry.instead is None else f"{1e6 * entry.instead:.2f}"
        rows.append((entry.name, f"{entry.bytes:,}", f"{1e6 * entry.seconds:.2f}", instead, entry.reason))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = []
    for name, *numbers, why in rows:
        cells = (number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True))
        lines.append("  ".join((name.ljust(widths[0]), *cells, why)).rstrip())
    counts = Counter(entry.reason for entry in entries if entry.reason in FREE)
    lines += [f"and {count} more: {reason}" for reason, count in counts.items()]
    return "\n".join(lines)
