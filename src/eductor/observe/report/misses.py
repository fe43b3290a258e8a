"""The nearest misses of patterns without a match: how many calls each matched, and which node disagreed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import Graph

from eductor.graph.snapshot import Snapshot
from eductor.patterns.explain.why_not import why_not
from eductor.patterns.pattern_pass import PatternPass
from eductor.pipeline.recorder import PassRecord


class Misses:
    """Finds the nearest misses of the passes of one stage; rebuilds each graph only once."""

    def __init__(self) -> None:
        self._seen: Snapshot | None = None
        self._graph: Graph | None = None

    def of(self, r: PassRecord, before: Snapshot) -> Iterator[dict[str, Any]]:
        """The nearest miss of each rule that neither matched nor refused anything."""
        pass_ = r.step.load() if r.step is not None and not r.step.is_slot else None
        if not isinstance(pass_, PatternPass) or r.status not in ("changed", "unchanged"):
            return
        answered = {match.rule for match in r.matches} | {reject.rule for reject in r.rejects}
        for rule in pass_.rules.rules:
            if rule.name in answered:
                continue
            found = why_not(rule, self._of(before))
            if found.miss is not None and found.miss.node is not None and 2 * found.found >= found.calls:
                reason = f"the nearest miss has {found.found} of {found.calls} calls; {found.miss.reason}"
                yield {"rule": rule.name, "nodes": [found.miss.node.name], "reason": reason}

    def _of(self, snapshot: Snapshot) -> Graph:
        if snapshot is not self._seen or self._graph is None:
            self._seen, self._graph = snapshot, snapshot.graph()
        return self._graph
