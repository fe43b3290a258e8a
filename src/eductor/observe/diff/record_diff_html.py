"""The comparison of two records as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from eductor.observe.diff.record_diff import GraphDiff, RecordDiff, Section
from eductor.observe.diff.text_diff import DiffRow, windows

STYLE = """
:root { color-scheme: light dark; --gone: light-dark(#ffe3e0, #4c1f1f); --new: light-dark(#dcf5e0, #17391f); }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 110rem; padding: 0 1.5rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; } th { text-align: left; }
td, th { padding: 0.15rem 0.9rem 0.15rem 0; vertical-align: top; border-bottom: 1px solid light-dark(#ddd, #333); }
table.code { width: 100%; table-layout: fixed; font: 12px/1.5 ui-monospace, monospace; }
table.code td { white-space: pre-wrap; overflow-wrap: anywhere; border: 0; }
td.gone { background: var(--gone); } td.new { background: var(--new); }
"""
CONTEXT = 3
"""The number of equal lines shown around a difference; the others are folded."""


def as_page(diff: RecordDiff) -> str:
    """The whole comparison as a self-contained page."""
    title = f"{diff.names[0]} and {diff.names[1]}"
    body = "\n".join(line for part in diff.parts for line in _part(part, diff.names))
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n'


def _part(part: Section | GraphDiff, names: tuple[str, str]) -> Iterator[str]:
    yield f"<h2>{escape(part.title)}</h2>"
    if isinstance(part, Section):
        if part.rows:
            yield _table(part)
        return
    yield f'<table class="code"><tr><th>{escape(names[0])}</th><th>{escape(names[1])}</th></tr>'
    yield from _lines(part.rows)
    yield "</table>"


def _table(section: Section) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in section.header)
    rows = (f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in section.rows)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _lines(rows: Sequence[DiffRow]) -> Iterator[str]:
    for left_out, i in windows([not row.is_same for row in rows], CONTEXT):
        if left_out:
            yield f'<tr><td colspan="2">… {left_out} {"line" if left_out == 1 else "lines"} the same</td></tr>'
        if i is not None:
            gone, new = ("", "") if rows[i].is_same else ("gone", "new")
            yield f"<tr>{_cell(rows[i].left, gone)}{_cell(rows[i].right, new)}</tr>"


def _cell(text: str | None, mark: str) -> str:
    return "<td></td>" if text is None else f'<td class="{mark}">{escape(text.strip())}</td>'
