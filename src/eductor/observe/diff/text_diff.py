"""Two graphs as Python, line by line: aligned by what the lines compute, whatever the nodes are called."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_LINE = re.compile(r"^    (?P<name>\w+) = (?P<call>.*?)(?:  # (?P<type>.*))?$")
_NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*")


class Row(NamedTuple):
    """A line of one final graph, of the other, or of both."""

    left: str | None
    right: str | None

    @property
    def is_same(self) -> bool:
        return self.left is not None and self.right is not None


def diff_of_texts(a: str, b: str) -> Iterator[Row]:
    """The lines of two graphs as Python, aligned by what they compute: of which operators, whatever these are called."""
    left, right = _keyed(a), _keyed(b)
    matcher = difflib.SequenceMatcher(None, [k for k, _ in left], [k for k, _ in right], autojunk=False)
    twins: dict[str, str] = {}
    """How the second graph calls what a name stands for in the first."""
    for what, i, j, m, n in matcher.get_opcodes():
        if what == "equal":
            for (_, x), (_, y) in zip(left[i:j], right[m:n], strict=True):
                yield from _pair(x, y, twins)
        else:
            twins |= _replaced([line for _, line in left[i:j]], [line for _, line in right[m:n]])
            yield from (Row(line, None) for _, line in left[i:j])
            yield from (Row(None, line) for _, line in right[m:n])


def _pair(x: str, y: str, twins: dict[str, str]) -> Iterator[Row]:
    """Two lines that call the same: one row if they read the same values, too, and two otherwise."""
    one, other = _LINE.match(x), _LINE.match(y)
    if one is not None and other is not None:
        is_same = _told(one["call"], twins) == other["call"]
        twins[one["name"]] = other["name"]
    else:
        is_same = _told(x, twins) == y
    yield from [Row(x, y)] if is_same else [Row(x, None), Row(None, y)]


def _replaced(gone: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """What stands for the names of lines that are gone: the next new line that calls the same, or nothing."""
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
    """Each line, and what it computes: its call with operands named by what they are, and its type."""
    made: dict[str, str] = {}
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            found.append((_told(line, made), line))
            continue
        call = _told(match["call"], made)
        made[match["name"]] = call.partition("(")[0]
        found.append((f"{call} {match['type']}", line))
    return found


def _told(text: str, made: dict[str, str]) -> str:
    return _NAME.sub(lambda name: made.get(name[0], name[0]), text)
