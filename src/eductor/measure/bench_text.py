"""The figures of a bench as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from eductor.measure.bench import Measured
from eductor.measure.cases import OURS, STOCK
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


STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#1b1f24, #e6e8eb); --faint: light-dark(#667, #99a);
  --line: light-dark(#dde, #334); --paper: light-dark(#fff, #14161a); }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem } p { max-width: 50rem } .faint { color: var(--faint) }
svg { width: 100%; height: auto } text { fill: var(--ink); font: 12px system-ui, sans-serif } .value { fill: var(--faint) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } td, th { padding: .2rem .8rem; border-bottom: 1px solid var(--line); text-align: right }
td:first-child, td:nth-child(2), th:first-child, th:nth-child(2) { text-align: left }
"""
COLORS = ("#8a94a6", "#e0913a", "#2f7de1", "#c56f1c", "#1c57a5")
"""Colors of the ways, in their order."""


@dataclass(frozen=True)
class Plot:
    """A plot of one figure, with a group of bars for each model."""

    figure: str
    title: str
    unit: str
    scale: float = 1.0


PLOTS = (
    Plot("milliseconds", "Time of a step", "ms"),
    Plot("cold", "First step with empty caches", "s"),
    Plot("warm", "First step with full caches", "s"),
    Plot("memory", "Memory", "MiB", 2**20),
)


def as_page(measured: Measured) -> str:
    """The figures as an HTML page."""
    data = measured.to_json()
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    plots = "".join(_drawn(plot, measured) for plot in PLOTS)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>eductor bench</title><style>{STYLE}</style>'
        f"<h1>Eductor beside Inductor and eager</h1><p>{escape(means(measured))}</p>"
        f'<p class="faint">{escape(data["machine"])}, torch {escape(data["torch"])}, Eductor {escape(data["eductor"])}, {when}. '
        "The bars of each model have their own scale; shorter is better.</p>"
        f"{plots}<h2>Figures</h2>{_table(measured)}</html>\n"
    )


def _drawn(plot: Plot, measured: Measured) -> str:
    groups = {
        name: {way: figures[plot.figure] / plot.scale for way, figures in row.items() if figures.get(plot.figure)}
        for name, row in measured.rows.items()
    }
    groups = {name: bars for name, bars in groups.items() if bars}
    if not groups:
        return ""
    ways = list(next(iter(measured.rows.values())))
    parts, y = list[str](), 0
    for name, bars in groups.items():
        parts.append(f'<text x="0" y="{y + 14}">{escape(name)}</text>')
        most = max(bars.values())
        for way, value in bars.items():
            width = 560 * value / most
            parts.append(
                f'<rect x="260" y="{y + 3}" width="{width:.1f}" height="13" rx="2" fill="{COLORS[ways.index(way) % len(COLORS)]}"/>'
                f'<text class="value" x="{266 + width:.1f}" y="{y + 14}">{value:.3g} {plot.unit}, {escape(way)}</text>'
            )
            y += 18
        y += 12
    return (
        f'<h2>{plot.title}</h2><svg viewBox="0 0 1060 {y}" role="img" aria-label="{plot.title}">{"".join(parts)}</svg>'
    )


def _table(measured: Measured) -> str:
    header = ("model", "way", "ms", "cold, s", "warm, s", "MiB", "error")
    lines = [_line(header, "th")]
    for name, row in measured.rows.items():
        for way, f in row.items():
            scaled = (f["milliseconds"], f.get("cold"), f.get("warm"), f["memory"] and f["memory"] / 2**20, f["error"])
            lines.append(_line((name, way, *("" if x is None else f"{x:.3g}" for x in scaled)), "td"))
    return f"<table>{''.join(lines)}</table>"


def _line(cells: Sequence[Any], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
