"""The passes of a stage as data: the difference that each pass and match made to the graph, and the nearest misses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.fx import Graph

from eductor.graph.snapshot import Snapshot
from eductor.observe.explain.explain_json import match_data, pass_data
from eductor.observe.report.nodes import Chain, Tables
from eductor.observe.report.state import Delta, NodeData, State, local_delta, whole_delta
from eductor.patterns.explain.why_not import why_not
from eductor.patterns.pattern_pass import PatternPass
from eductor.pipeline.recorder import PassRecord

if TYPE_CHECKING:
    from eductor.observe.explain.explain import Explanation, StageView

Edits = tuple[list[int], list[tuple[int | None, NodeData]]]


def pass_runs(
    explanation: Explanation, view: StageView, chain: Chain, state: State, tables: Tables
) -> Iterator[dict[str, Any]]:
    """The passes of a stage in order; each one's difference is applied to the state."""
    misses, seen = Misses(), view.stage.start
    for record in view.passes:
        chain.by_pass = record.address
        run = {**_pass_run(record, chain, state, tables), "verified": explanation.verdict(record)}
        if seen is not None:
            run["rejects"] += misses.of(record, record.before or seen)
            seen = record.after or seen
        yield run


def _pass_run(r: PassRecord, chain: Chain, state: State, tables: Tables) -> dict[str, Any]:
    pass_ = r.step.load() if r.step is not None and not r.step.is_slot else None
    deltas: list[Delta | None] = [None] * len(r.matches)
    delta: Delta | None = None
    if r.before is not None and r.after is not None:
        chain.goes_on(r.before)
        edits = list(_edits_of(r, chain)) if len(r.edits) == len(r.matches) else []
        after = chain.whole(r.after)
        deltas = _match_deltas(edits, State(state.nodes[id] for id in state), after) or deltas
        delta = whole_delta(state, after)
    return {
        **pass_data(r),
        "purpose": pass_.purpose if pass_ is not None else "",
        "place": r.step.reason if r.step is not None else "",
        "rule": tables.rules.of(pass_) if pass_ is not None else None,
        "matches": [
            {**match_data(match), "source": tables.rules.of(pass_, match.rule) if pass_ else None, "delta": match_delta}
            for match, match_delta in zip(r.matches, deltas, strict=True)
        ],
        "delta": delta,
    }


def _edits_of(r: PassRecord, chain: Chain) -> Iterator[Edits]:
    """The nodes that each match touched: the ids of erased ones, and the others, each with its preceding node."""
    for edits in r.edits:
        erased = [chain.id(e.node) for e in edits if not e.call]
        live = [(chain.id(e.previous), chain.record(e.node, e.call, e.meta)) for e in edits if e.call]
        yield [id for id in erased if id is not None], live


def _match_deltas(edits: Sequence[Edits], state: State, after: Mapping[int, NodeData]) -> list[Delta | None]:
    """The difference that each match made; empty if the pass also edited the graph without the rewriter.

    Edits at the end of a pass, such as the removal of dead nodes, count to its last match.
    """
    deltas: list[Delta | None] = []
    for erased, live in edits[:-1]:
        made = {None, *(node["id"] for _, node in live)}
        named = {id for before, node in live for id in (before, *node["inputs"])}
        if any(id not in made and id not in state.nodes for id in named):
            return []
        deltas.append(local_delta(state, erased, live))
    return [*deltas, whole_delta(state, after)] if edits else []


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
