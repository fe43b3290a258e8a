"""A plan of what is saved and what is computed again: a value that prints, goes to JSON and back, and can be replayed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch.fx import Graph, Node

from eductor.errors import BadOption
from eductor.graph.structure import node_hashes

FORMAT = 1

FREE = ("an input", "a view")
"""Reasons of values that cost nothing: a table counts them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the forward that the backward needs, and what becomes of it."""

    name: str
    key: str
    """Names the value in every graph of this structure: a hash of all that it is computed from, and which of several."""
    bytes: int
    seconds: float
    """What it costs to do with it what the plan does."""
    instead: float | None
    """What the other way would cost: to compute it again, or to save it; None if there is no other way."""
    reason: str
    ahead: bool = False
    """Whether the backward computes it at its start, and holds it from then on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a forward saves for its backward, and what the backward computes again."""

    budget: float | Mapping[str, float]
    saved: tuple[Entry, ...]
    again: tuple[Entry, ...]
    peak: int
    """Bytes that are held at once in forward and backward, by estimate, beyond the inputs."""

    @property
    def bytes(self) -> int:
        """The bytes of all that is saved, inputs aside."""
        return sum(entry.bytes for entry in self.saved)

    @property
    def seconds(self) -> float:
        """What saving and computing again takes, by estimate."""
        return sum(entry.seconds for entry in (*self.saved, *self.again))

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON has it; `from_json` reads it back."""
        saved, again = ([asdict(entry) for entry in entries] for entries in (self.saved, self.again))
        return {"format": FORMAT, "budget": self.budget, "saved": saved, "again": again, "peak": self.peak}

    @staticmethod
    def from_json(given: dict[str, Any] | str) -> Plan:
        """Reads what `to_json` gave, or its text."""
        found = json.loads(given) if isinstance(given, str) else given
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise BadOption(f"this is no plan of the format {FORMAT}: {str(given)[:80]!r}. `Plan.to_json` gives one.")
        saved, again = (tuple(Entry(**entry) for entry in found[what]) for what in ("saved", "again"))
        return Plan(found["budget"], saved, again, found["peak"])

    def nodes(self, graph: Graph) -> tuple[list[Node], list[Node]]:
        """The nodes of a joint graph that the plan saves, and those that it computes ahead; an error names missing ones."""
        known = {key: node for node, key in keys(graph).items()}
        ahead = [entry for entry in self.again if entry.ahead]
        missing = [entry.name for entry in (*self.saved, *ahead) if entry.key not in known]
        if missing:
            raise BadOption(
                f"the plan has {', '.join(missing)}, which this graph does not compute: it was made for another one."
            )
        return [known[entry.key] for entry in self.saved], [known[entry.key] for entry in ahead]

    def __str__(self) -> str:
        return f"{_table('saved', self.saved)}\n\n{_table('computed again', self.again)}\n\n{self.summary()}"

    def summary(self) -> str:
        """The sums, in a sentence."""
        return (
            f"{len(self.saved)} values of {self.bytes:,} bytes are saved, {len(self.again)} are computed again; this takes "
            f"{1e6 * self.seconds:.1f} us by estimate, and at most {self.peak:,} bytes are held at once."
        )


def keys(graph: Graph) -> dict[Node, str]:
    """For each node a name that it has in every graph of the same structure."""
    seen: Counter[str] = Counter()
    found: dict[Node, str] = {}
    for node, digest in node_hashes(graph).items():
        found[node] = f"{digest}#{seen[digest]}"
        seen[digest] += 1
    return found


def _table(title: str, entries: Sequence[Entry]) -> str:
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
    lines += [f"and {count} of the kind: {reason}" for reason, count in counts.items()]
    return "\n".join(lines)
