"""Formats tables as aligned text or as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from eductor.graph.matches import Rejection
from eductor.pipeline.recorder import PassRecord


def as_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with aligned columns; numbers are right-aligned."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max([len(h), *(len(row[i]) for row in cells)]) for i, h in enumerate(header)]
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        aligned = (c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True))
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, cells)])


def as_markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [list(header), ["---"] * len(header), *([str(c).replace("|", "\\|") for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pass_table(records: Iterable[PassRecord]) -> str:
    """What each pass did, in order of execution; passes without candidates or often-skipped ones are only counted."""
    return _table(records, ("graph", "pass", "result", "matches", "nodes", "ms", "why"), _row)


def stage_table(records: Iterable[PassRecord]) -> str:
    """Like `pass_table`, without the columns for graph and stage."""
    header = ("pass", "result", "matches", "nodes", "ms", "why")
    return _table(records, header, lambda record: (record.name, *_row(record)[2:]))


def _table(records: Iterable[PassRecord], header: Sequence[str], row: Callable[[PassRecord], Sequence[object]]) -> str:
    records = list(records)
    silent = [r for r in records if r.status == "unchanged" and not r.rejects and not r.reason]
    reasons = Counter(r.reason for r in records if r.status == "skipped")
    often = {reason: n for reason, n in reasons.items() if n >= _OFTEN}
    ids = set(map(id, silent))
    listed = [r for r in records if id(r) not in ids and not (r.status == "skipped" and r.reason in often)]
    lines = [as_text(header, map(row, listed))] if listed or not (silent or often) else []
    lines += [f"{n} passes were skipped: {reason}." for reason, n in often.items()]
    if silent:
        passes = "1 pass" if len(silent) == 1 else f"{len(silent)} passes"
        lines.append(f"{passes} found no candidates, in {1000 * sum(r.seconds for r in silent):.2f} ms.")
    return "\n".join(lines)


_OFTEN = 3
"""The number of passes skipped for the same reason from which on they are only counted."""


def indent(text: str, by: str = "  ") -> str:
    """Indents a text."""
    return "\n".join(f"{by}{line}".rstrip() for line in text.splitlines())


def _row(r: PassRecord) -> tuple[object, ...]:
    nodes = str(r.nodes_before) if r.nodes_before == r.nodes_after else f"{r.nodes_before} -> {r.nodes_after}"
    why = r.reason or (nearest_miss(r) if not r.changed else "")
    return r.graph, r.address, r.status, len(r.matches) or "", nodes, f"{1000 * r.seconds:.2f}", why


def nearest_miss(r: PassRecord) -> str:
    """Why a pass refused its last candidate, and how many others it refused."""
    if not r.rejects:
        return ""
    reject = r.rejects[-1]
    more = f" (and {len(r.rejects) - 1} more)" if len(r.rejects) > 1 else ""
    return f"{described(reject)}{more}"


def described(reject: Rejection) -> str:
    """A candidate that a pass left, and why; with the other nodes that it is about, unless the reason names them."""
    named = re.findall(r"\w+", reject.reason)
    nodes = [*reject.nodes[:1], *(node for node in reject.nodes[1:] if node not in named)]
    return f"{', '.join(nodes)}: {reject.reason}" if nodes else reject.reason


def _is_number(cell: str) -> bool:
    return cell.replace(".", "", 1).isdigit() or cell == ""
