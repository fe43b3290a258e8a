"""What a rewriter records: the matches of a pass, the edits that each made, and the candidates that were rejected."""

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
    """Why it was made, where that is not plain from the rule."""
    touched: Sequence[Node] = ()
    """The nodes that it made, changed, moved or erased, while listeners are called at its end."""


class LimitReached(Exception):
    """A pass that may make no more matches began another one: it ends here, with what it made so far."""


class MatchListener(Protocol):
    """Called for each match: when its first edit is made, when it is complete, when it is given up."""

    def begin(self, match: Match) -> None: ...

    def end(self, match: Match) -> None: ...

    def fail(self, match: Match, error: Exception) -> None: ...
