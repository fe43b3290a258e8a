"""A plan of what is saved and what is computed again: a value that prints, is edited, and goes to JSON and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.fx import Graph, Node

from eductor.errors import BadOption, UnknownName
from eductor.graph.text.structure import node_hashes
from eductor.partition import plan_text

FORMAT = 1
LISTS = ("saved", "again", "others")

EDITED = "asked for by an edit"
"""The reason of a value that an edit moved."""
UNUSED = "not needed"
"""The reason of a value that is neither saved nor computed again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the forward, and what becomes of it."""

    name: str
    key: str
    """Names the value in every graph of this structure: a hash of all that it is computed from, and which of several."""
    bytes: int
    seconds: float
    """What it costs to do with it what the plan does; of the others, what computing it again would."""
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
    others: tuple[Entry, ...]
    """Values that the backward neither reads nor computes: they could be saved, so that others are computed from them."""
    peak: int | None
    """Bytes that are held at once in forward and backward, by estimate, beyond the inputs; None after an edit."""

    @property
    def bytes(self) -> int:
        """The bytes of all that is saved, inputs aside."""
        return sum(entry.bytes for entry in self.saved)

    @property
    def seconds(self) -> float:
        """What saving and computing again takes, by estimate."""
        return sum(entry.seconds for entry in (*self.saved, *self.again))

    def entries(self) -> tuple[Entry, ...]:
        """All values."""
        return (*self.saved, *self.again, *self.others)

    def edited(self) -> frozenset[str]:
        """The keys of values that an edit moved."""
        return frozenset(entry.key for entry in self.entries() if entry.reason.startswith(EDITED))

    def saving(self, *names: str) -> Plan:
        """The plan that saves these values, too. One that the backward turns out not to need is left out."""
        moved = self._moved(names, (*self.again, *self.others), "saved")
        again, others = (_without(moved, entries) for entries in (self.again, self.others))
        return replace(self, saved=(*self.saved, *moved), again=again, others=others, peak=None)

    def recomputing(self, *names: str) -> Plan:
        """The plan that does not save these values; what the backward then needs besides is computed again, too."""
        moved = self._moved(names, self.saved, "computed again")
        return replace(self, saved=_without(moved, self.saved), again=(*self.again, *moved), peak=None)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON has it; `from_json` reads it back."""
        entries = {what: [asdict(entry) for entry in getattr(self, what)] for what in LISTS}
        return {"format": FORMAT, "budget": self.budget, **entries, "peak": self.peak}

    @staticmethod
    def from_json(given: dict[str, Any] | str) -> Plan:
        """Reads what `to_json` gave, or its text."""
        try:
            found = json.loads(given) if isinstance(given, str) else given
            if found["format"] != FORMAT:
                raise ValueError(f"the format {found['format']}")
            saved, again, others = (tuple(Entry(**entry) for entry in found[what]) for what in LISTS)
            return Plan(found["budget"], saved, again, others, found["peak"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadOption(
                f"this is no plan of the format {FORMAT}: {str(given)[:80]!r}. `Plan.to_json` gives one."
            ) from error

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
        return plan_text.as_text(self)

    def _moved(self, names: Sequence[str], movable: Sequence[Entry], what: str) -> tuple[Entry, ...]:
        """The values of these names that are not where they are to be, with the costs of the other way."""
        known = {entry.name: entry for entry in self.entries()}
        for name in names:
            if name not in known:
                raise UnknownName("value of the plan", name, known)
        moved = []
        for entry in movable:
            if entry.name not in names:
                continue
            if entry.instead is None:
                raise BadOption(f"{entry.name} cannot be {what}. The plan says of it: {entry.reason}.")
            moved.append(replace(entry, seconds=entry.instead, instead=entry.seconds, reason=EDITED, ahead=False))
        return tuple(moved)


def keys(graph: Graph) -> dict[Node, str]:
    """For each node a name that it has in every graph of the same structure."""
    seen: Counter[str] = Counter()
    found: dict[Node, str] = {}
    for node, digest in node_hashes(graph).items():
        found[node] = f"{digest}#{seen[digest]}"
        seen[digest] += 1
    return found


def _without(moved: Iterable[Entry], entries: Sequence[Entry]) -> tuple[Entry, ...]:
    gone = {entry.key for entry in moved}
    return tuple(entry for entry in entries if entry.key not in gone)
