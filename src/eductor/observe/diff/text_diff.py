"""Diffs two graphs printed as Python: lines are aligned by what they compute, ignoring node names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_LINE = re.compile(r"^    (?P<name>\w+) = (?P<call>.*?)(?:  # (?P<type>.*))?$")
_NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*")


class DiffRow(NamedTuple):
    """A line of one graph, of the other, or of both."""

    left: str | None
    right: str | None

    @property
    def is_same(self) -> bool:
        return self.left is not None and self.right is not None


def windows(changed: Sequence[bool], context: int) -> Iterator[tuple[int, int | None]]:
    """The rows around changes: how many were left out before each, and its index; None after the last row."""
    near = {j for i, is_changed in enumerate(changed) if is_changed for j in range(i - context, i + context + 1)}
    left_out = 0
    for i in range(len(changed)):
        if i in near:
            yield left_out, i
        left_out = 0 if i in near else left_out + 1
    yield left_out, None


def diff_of_texts(a: str, b: str) -> Iterator[DiffRow]:
    """The lines of two graphs, aligned by the operators they call and the operators of their operands."""
    left, right = _keyed(a), _keyed(b)
    matcher = difflib.SequenceMatcher(None, [k for k, _ in left], [k for k, _ in right], autojunk=False)
    twins: dict[str, str] = {}
    """The name in the second graph of each node of the first."""
    for what, i, j, m, n in matcher.get_opcodes():
        if what == "equal":
            for (_, x), (_, y) in zip(left[i:j], right[m:n], strict=True):
                yield from _pair(x, y, twins)
        else:
            twins |= _replaced([line for _, line in left[i:j]], [line for _, line in right[m:n]])
            yield from (DiffRow(line, None) for _, line in left[i:j])
            yield from (DiffRow(None, line) for _, line in right[m:n])


def _pair(x: str, y: str, twins: dict[str, str]) -> Iterator[DiffRow]:
    """Two lines that call the same operator: one row if they also read the same values, else two."""
    one, other = _LINE.match(x), _LINE.match(y)
    if one is not None and other is not None:
        is_same = _renamed(one["call"], twins) == other["call"]
        twins[one["name"]] = other["name"]
    else:
        is_same = _renamed(x, twins) == y
    yield from [DiffRow(x, y)] if is_same else [DiffRow(x, None), DiffRow(None, y)]


def _replaced(gone: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """For the names of removed lines, the next new line that calls the same operator, or ""."""
    waiting = [found for line in new if (found := _LINE.match(line))]
    twins = {}
    for line in gone:
        if (found := _LINE.match(line)) is None:
            continue
        operator = found["call"].partition("(")[0]
        twin = next((other for other in waiting if other["call"].partition("(")[0] == operator), None)
        twins[found["name"]] = twin["name"] if twin is not None else ""
        if twin is not None:
            waiting.remove(twin)
    return twins


def _keyed(text: str) -> list[tuple[str, str]]:
    """Each line with a key of what it computes: its call, with operands renamed to their operators, and its type."""
    made: dict[str, str] = {}
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            found.append((_renamed(line, made), line))
            continue
        call = _renamed(match["call"], made)
        made[match["name"]] = call.partition("(")[0]
        found.append((f"{call} {match['type']}", line))
    return found


def _renamed(text: str, made: dict[str, str]) -> str:
    return _NAME.sub(lambda name: made.get(name[0], name[0]), text)
