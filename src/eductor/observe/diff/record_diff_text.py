"""The comparison of two records as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from eductor.observe.diff.record_diff import GraphDiff, RecordDiff, Section
from eductor.observe.diff.text_diff import DiffRow
from eductor.observe.table import as_text, indent

CONTEXT = 2
"""The number of equal lines shown around a difference."""


def as_terminal(diff: RecordDiff) -> str:
    """All tables, and the lines in which the final graphs differ."""
    return "\n\n".join("\n".join(_part(part, diff.names)) for part in diff.parts)


def _part(part: Section | GraphDiff, names: tuple[str, str]) -> Iterator[str]:
    if isinstance(part, Section):
        yield part.title
        if part.header:
            yield indent(as_text(part.header, part.rows) if part.rows else "none")
        return
    changed = [i for i, row in enumerate(part.rows) if not row.is_same]
    if not changed:
        yield f"{part.title}: the same, {len(part.rows)} lines"
        return
    yield f"{part.title}: - only in {names[0]}, + only in {names[1]}"
    shown = sorted({j for i in changed for j in range(i - CONTEXT, i + CONTEXT + 1) if 0 <= j < len(part.rows)})
    previous = -1
    for i in [*shown, len(part.rows)]:
        if i > previous + 1:
            yield f"  @@ {i - previous - 1} the same @@"
        if i < len(part.rows):
            yield f"  {line_of(part.rows[i])}"
        previous = i


def line_of(row: DiffRow) -> str:
    """A line with its sign."""
    text = row.left if row.left is not None else row.right
    sign = " " if row.is_same else "-" if row.right is None else "+"
    return f"{sign} {(text or '').strip()}"
