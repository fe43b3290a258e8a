"""Compares two records: what each stage and pass did, what is saved, which kernels run, and the final graphs; also as text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from eductor.errors import BadOption
from eductor.observe.diff.text_diff import DiffRow, diff_of_texts, windows
from eductor.observe.explain.explain_json import SCHEMA
from eductor.observe.table import as_text, indent

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """A table that compares the records."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """Two final graphs, line by line; a node that only has another name counts as equal."""

    title: str
    rows: Sequence[DiffRow]


@dataclass(frozen=True, slots=True)
class RecordDiff:
    """The comparison of two records."""

    names: tuple[str, str]
    parts: Sequence[Section | GraphDiff]


def read_record(file: str) -> Record:
    """Reads a record that `eductor explain --json` wrote."""
    wanted = f"give a file that `eductor explain SCRIPT.py --json` wrote, in the schema {SCHEMA!r}"
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadOption(f"{file!r} cannot be read ({error.strerror}): {wanted}.") from error
    except ValueError as error:
        raise BadOption(f"{file!r} is not JSON ({error}): {wanted}.") from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise BadOption(f"{file!r} has the schema {schema!r}: {wanted}.")
    return dict(found)


def compare_records(a: Record, b: Record, names: tuple[str, str] = ("A", "B")) -> RecordDiff:
    """Compares two records of the same program; graphs are paired in order."""
    parts: list[Section | GraphDiff] = [_whole(a, b, names)]
    for one, other in zip_longest(a["graphs"], b["graphs"]):
        parts += _graphs(one, other, names)
    return RecordDiff(names, parts)


def _whole(a: Record, b: Record, names: tuple[str, str]) -> Section:
    shown: dict[str, Callable[[Any], object]] = {
        "eductor": str,
        "torch": str,
        "graphs": len,
        "warnings": len,
        "seconds": "{:.2f}".format,
    }
    rows = [(what, str(show(a[what])), str(show(b[what]))) for what, show in shown.items()]
    return Section("the records", ("", *names), rows)


def _graphs(a: Record | None, b: Record | None, names: tuple[str, str]) -> Iterator[Section | GraphDiff]:
    given = a or b
    assert given is not None
    title = f"graph {given['number']}: {given['description']}"
    if a is None or b is None:
        yield Section(f"{title}, only in {names[0] if b is None else names[1]}", (), ())
        return
    left, right = ({(s["name"], _graph_of(s)): s for s in graph["stages"]} for graph in (a, b))
    keys = list(dict.fromkeys([*left, *right]))
    rows = [(_label(*key), *_paired(left.get(key), right.get(key), _stage)) for key in keys]
    yield Section(f"{title}: stages", ("stage", *_both(names, ("nodes", "changed", "ms"))), rows)
    yield Section(f"{title}: passes", ("pass", *_both(names, ("result", "nodes", "ms"))), list(_passes(left, right)))
    yield Section(f"{title}: memory and kernels", ("", *names), list(_totals(left, right)))
    for role in ("captured", "forward", "backward"):
        texts = [stages.get(("pre_grad" if role == "captured" else "post_grad", role), {}) for stages in (left, right)]
        one, other = (stage.get("result") for stage in texts)
        if (one or other) and (role != "captured" or not _has_final(left, right)):
            yield GraphDiff(f"{title}: the final graph, {role}", list(diff_of_texts(one or "", other or "")))


def _has_final(*stages: dict[Any, Any]) -> bool:
    return any(("post_grad", "forward") in each for each in stages)


def _graph_of(stage: Record) -> str:
    """The role of a stage's graph, and for a backward with fewer inputs which ones it lacks."""
    return f"{stage['role']} {stage.get('variant') or ''}".rstrip()


def _both(names: tuple[str, str], columns: Sequence[str]) -> list[str]:
    return [f"{column} {name}" for column in columns for name in names]


def _paired(a: Record | None, b: Record | None, cells: Any) -> list[str]:
    """The cells of both, interleaved; missing ones are dashes."""
    count = len(cells(a or b))
    left, right = (cells(x) if x is not None else ["-"] * count for x in (a, b))
    return [cell for pair in zip(left, right, strict=True) for cell in pair]


def _stage(stage: Record) -> list[str]:
    passes = stage["passes"]
    changed = sum(p["status"] == "changed" for p in passes)
    after = next((p["nodes_after"] for p in reversed(passes) if p["status"] == "changed"), stage["nodes"])
    return [_arrow(stage["nodes"], after), str(changed), f"{1000 * stage['seconds']:.1f}"]


def _passes(left: dict[Any, Record], right: dict[Any, Record]) -> Iterator[Sequence[str]]:
    """The passes that changed a graph or failed in at least one record."""
    a, b = (
        {(p["address"], graph): p for (_, graph), stage in stages.items() for p in stage["passes"]}
        for stages in (left, right)
    )
    for key in dict.fromkeys([*a, *b]):
        if any(p is not None and p["status"] in ("changed", "failed") for p in (a.get(key), b.get(key))):
            yield _label(*key), *_paired(a.get(key), b.get(key), _pass)


def _pass(p: Record) -> list[str]:
    matches = len(p["matches"])
    status = p["status"] + (f" ({matches})" if matches else "")
    return [status, _arrow(p["nodes_before"], p["nodes_after"]), f"{1000 * p['seconds']:.1f}"]


def _label(name: str, graph: str) -> str:
    return f"{name}, {graph}" if graph.startswith(("forward", "backward")) else name


def _arrow(before: int, after: int) -> str:
    return str(before) if before == after else f"{before} -> {after}"


def _totals(left: dict[Any, Record], right: dict[Any, Record]) -> Iterator[tuple[str, str, str]]:
    partitions = [stages.get(("partition", "joint"), {}).get("facts", {}) for stages in (left, right)]
    for key in ("saved_inputs", "saved_values", "saved_bytes"):
        if any(key in facts for facts in partitions):
            one, other = (str(facts.get(key, "-")) for facts in partitions)
            yield key.replace("_", " "), one, other
    for role in ("forward", "backward"):
        stages = [each.get(("engine", role)) for each in (left, right)]
        if any(stages):
            one, other = (_kernels(stage) if stage is not None else "-" for stage in stages)
            yield f"kernels, {role}", one, other


def _kernels(stage: Record) -> str:
    counts = Counter(kernel["language"] for kernel in stage["facts"].get("kernels", ()))
    kernels = ", ".join(f"{count} {language}" for language, count in sorted(counts.items()))
    return f"{stage['facts'].get('engine', '?')}: {kernels or 'unknown'}"


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
    changed = [not row.is_same for row in part.rows]
    if not any(changed):
        yield f"{part.title}: the same, {len(part.rows)} lines"
        return
    yield f"{part.title}: - only in {names[0]}, + only in {names[1]}"
    for left_out, i in windows(changed, CONTEXT):
        if left_out:
            yield f"  @@ {left_out} the same @@"
        if i is not None:
            yield f"  {line_of(part.rows[i])}"


def line_of(row: DiffRow) -> str:
    """A line with its sign."""
    text = row.left if row.left is not None else row.right
    sign = " " if row.is_same else "-" if row.right is None else "+"
    return f"{sign} {(text or '').strip()}"
