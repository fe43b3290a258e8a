"""A plan of what is saved and what is recomputed: printable, editable, and serializable to JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.fx import Graph, Node

from eductor.errors import BadOption, UnknownName
from eductor.graph import node_hashes

FORMAT = 1
LISTS = ("saved", "again", "others")

EDITED = "requested by an edit"
"""The reason of a value that an edit moved."""
FREE = ("an input", "a view")
"""Reasons of free values, which a table only counts."""
UNUSED = "not needed"
"""The reason of a value that is neither saved nor recomputed."""


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """A value of the forward, and whether it is saved or recomputed."""

    name: str
    key: str
    """Identifies the value in every graph of this structure: a hash of all that it is computed from, and a counter."""
    bytes: int
    seconds: float
    """The cost of saving or recomputing it, as the plan does; for `others`, of recomputing it."""
    instead: float | None
    """The cost of the alternative, recomputing or saving it; None if there is none."""
    reason: str
    ahead: bool = False
    """Whether the backward computes it at its start, and holds it from then on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a forward saves for its backward, and what the backward recomputes."""

    budget: float | Mapping[str, float]
    saved: tuple[PlanEntry, ...]
    again: tuple[PlanEntry, ...]
    others: tuple[PlanEntry, ...]
    """Values that the backward neither reads nor recomputes: they could be saved to recompute others from."""
    peak: int | None
    """The estimated peak in bytes of forward and backward, beyond the inputs; None after an edit."""

    @property
    def bytes(self) -> int:
        """The bytes of all saved values, without inputs."""
        return sum(entry.bytes for entry in self.saved)

    @property
    def seconds(self) -> float:
        """The estimated time of saving and recomputing."""
        return sum(entry.seconds for entry in (*self.saved, *self.again))

    def entries(self) -> tuple[PlanEntry, ...]:
        """All values."""
        return (*self.saved, *self.again, *self.others)

    def edited(self) -> frozenset[str]:
        """The keys of values that an edit moved."""
        return frozenset(entry.key for entry in self.entries() if entry.reason.startswith(EDITED))

    def saving(self, *names: str) -> Plan:
        """The plan with these values saved as well. A value that the backward then does not need is dropped."""
        moved = self._moved(names, (*self.again, *self.others), "saved")
        again, others = (_without(moved, entries) for entries in (self.again, self.others))
        return replace(self, saved=(*self.saved, *moved), again=again, others=others, peak=None)

    def recomputing(self, *names: str) -> Plan:
        """The plan without saving these values; what the backward then also needs is recomputed as well."""
        moved = self._moved(names, self.saved, "recomputed")
        return replace(self, saved=_without(moved, self.saved), again=(*self.again, *moved), peak=None)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON data; `from_json` reads it back."""
        entries = {what: [asdict(entry) for entry in getattr(self, what)] for what in LISTS}
        return {"format": FORMAT, "budget": self.budget, **entries, "peak": self.peak}

    @staticmethod
    def from_json(given: dict[str, Any] | str) -> Plan:
        """Reads what `to_json` gave, or its text."""
        try:
            found = json.loads(given) if isinstance(given, str) else given
            if found["format"] != FORMAT:
                raise ValueError(f"the format {found['format']}")
            saved, again, others = (tuple(PlanEntry(**entry) for entry in found[what]) for what in LISTS)
            return Plan(found["budget"], saved, again, others, found["peak"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadOption(
                f"this is not a plan of the format {FORMAT}: {str(given)[:80]!r}. `Plan.to_json` gives one."
            ) from error

    def nodes(self, graph: Graph) -> tuple[list[Node], list[Node]]:
        """The nodes of a joint graph that the plan saves, and those it computes ahead; raises BadOption if any is missing."""
        known = {key: node for node, key in keys(graph).items()}
        ahead = [entry for entry in self.again if entry.ahead]
        missing = [entry.name for entry in (*self.saved, *ahead) if entry.key not in known]
        if missing:
            raise BadOption(
                f"the plan has {', '.join(missing)}, which this graph does not compute: it was made for another graph."
            )
        return [known[entry.key] for entry in self.saved], [known[entry.key] for entry in ahead]

    def summary(self) -> str:
        """The totals, in a sentence."""
        held = "" if self.peak is None else f", with a peak of {self.peak:,} bytes"
        return (
            f"{len(self.saved)} values of {self.bytes:,} bytes are saved, {len(self.again)} are recomputed; this takes "
            f"{1e6 * self.seconds:.1f} us by estimate{held}."
        )

    def __str__(self) -> str:
        return f"{_table('saved', self.saved)}\n\n{_table('recomputed', self.again)}\n\n{self.summary()}"

    def _moved(self, names: Sequence[str], movable: Sequence[PlanEntry], what: str) -> tuple[PlanEntry, ...]:
        """The entries with these names that must move, with their costs swapped."""
        known = {entry.name: entry for entry in self.entries()}
        for name in names:
            if name not in known:
                raise UnknownName("value of the plan", name, known)
        moved = []
        for entry in movable:
            if entry.name not in names:
                continue
            if entry.instead is None:
                raise BadOption(f"{entry.name} cannot be {what}. Its reason in the plan: {entry.reason}.")
            moved.append(replace(entry, seconds=entry.instead, instead=entry.seconds, reason=EDITED, ahead=False))
        return tuple(moved)


def keys(graph: Graph) -> dict[Node, str]:
    """A key for each node that is the same in every graph of the same structure."""
    seen: Counter[str] = Counter()
    found: dict[Node, str] = {}
    for node, digest in node_hashes(graph).items():
        found[node] = f"{digest}#{seen[digest]}"
        seen[digest] += 1
    return found


def _without(moved: Iterable[PlanEntry], entries: Sequence[PlanEntry]) -> tuple[PlanEntry, ...]:
    gone = {entry.key for entry in moved}
    return tuple(entry for entry in entries if entry.key not in gone)


def _table(title: str, entries: Sequence[PlanEntry]) -> str:
    """Values as a table for a terminal, the largest first."""
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
