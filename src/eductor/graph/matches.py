"""What a rewriter records: matches with their edits, and rejected candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch.fx import Node


class Event(NamedTuple):
    """One edit: `created`, `replaced`, `updated`, `moved` or `erased`, of which node, within which match."""

    kind: str
    node: str
    detail: str
    address: str


class Rejection(NamedTuple):
    """The record of a `No` that a pass gave to `rewrite.reject`: nodes by their names, within which rule."""

    reason: str
    nodes: tuple[str, ...]
    rule: str


@dataclass(slots=True)
class Match:
    """The edits made while a pass looked at one candidate."""

    address: str
    rule: str
    node: str
    events: list[Event] = field(default_factory=list)
    note: str = ""
    """Why it was made, where the rule does not show it."""
    touched: Sequence[Node] = ()
    """The nodes that it created, changed, moved or erased; set only while listeners are called at its end."""


class LimitReached(Exception):
    """Raised when a pass begins a match beyond its limit; it ends with the matches made so far."""


class MatchListener(Protocol):
    """Receives each match: at its first edit, when it is complete, when its pass raised."""

    def begin(self, match: Match) -> None: ...

    def end(self, match: Match) -> None: ...

    def fail(self, match: Match, error: Exception) -> None: ...
