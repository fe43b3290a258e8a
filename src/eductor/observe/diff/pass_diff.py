"""The diff of a pass: its matches, and the graph before and after, aligned node by node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.fx import Graph, Node

from eductor.errors import UnknownName
from eductor.graph import align, type_of, value_of
from eductor.graph.text.printer import statement, symbol_names
from eductor.observe.diff.text_diff import windows
from eductor.observe.table import described
from eductor.pipeline.recorder import PassRecord

if TYPE_CHECKING:
    from eductor.observe.explain.explain import Explanation

CONTEXT = 3
"""The number of unchanged lines shown around a change."""


def diff_of_pass(explanation: Explanation, name: str) -> str:
    """What a pass, by its name or address, changed in each graph; or why it changed nothing."""
    wanted = name.partition("@")[0].partition(":")[0]
    records = explanation.recorder.records
    found = [r for r in records if wanted in (r.name, r.address)]
    if not found:
        raise UnknownName("pass", name, [r.name for r in records])
    shown = [r for r in found if r.changed] or found
    return "\n\n".join("\n".join(_record(r)) for r in shown)


def _record(r: PassRecord) -> Iterator[str]:
    place = f"{r.address} in graph {r.graph} ({r.role})"
    if r.before is None or r.after is None:
        yield f"{place}: {r.status}" + (f", {r.reason}" if r.reason else "")
        yield from (f"  left alone: {described(reject)}" for reject in r.rejects)
        return
    yield f"{place}: {len(r.matches)} {'match' if len(r.matches) == 1 else 'matches'}"
    for match in r.matches:
        yield f"  {match.address}: at {match.node}" + (f", {match.note}" if match.note else "")
        yield from (f"    {e.kind} {e.node} {e.detail}".rstrip() for e in match.events)
    changed = diff_of_graphs(r.before.graph(), r.after.graph())
    yield from changed or ["  the change is in the body of a higher-order operator"]


def diff_of_graphs(before: Graph, after: Graph) -> list[str]:
    """A unified diff of two graphs: `-` is removed, `+` is new, `>` has moved here; empty if they are equal."""
    rows: list[tuple[str, str]] = []
    old, new = _lines(before), _lines(after)
    for pair in align(before, after):
        left = old[pair.before] if pair.before is not None else ""
        right = new[pair.after] if pair.after is not None else ""
        if pair.status == "same" or (pair.status == "moved" and left == right):
            rows.append((" ", right) if pair.status == "same" else (">", f"{right}  (moved)"))
            continue
        mark = "  (moved)" if pair.status == "moved" else ""
        rows += [("-", left)] if left else []
        rows += [("+", f"{right}{mark}")] if right else []
    return [] if all(sign == " " for sign, _ in rows) else list(_with_context(rows))


def _with_context(rows: list[tuple[str, str]]) -> Iterator[str]:
    """The changed lines with context; the lines left out are counted."""
    for left_out, i in windows([sign != " " for sign, _ in rows], CONTEXT):
        if left_out:
            yield f"@@ {left_out} unchanged @@"
        if i is not None:
            yield "{} {}".format(*rows[i])


def _lines(graph: Graph) -> dict[Node, str]:
    """The printed line of each node; for inputs, the name and type."""
    names = symbol_names(graph)
    lines = {}
    for node in graph.nodes:
        kind = type_of(value_of(node), names) if node.op != "output" else ""
        text = node.name if node.op == "placeholder" else statement(node)
        lines[node] = f"{text}  # {kind}" if kind else text
    return lines
