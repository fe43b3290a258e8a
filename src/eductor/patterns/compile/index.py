"""Indexes all rules of a pass as one tree of steps: a common prefix of patterns is tested once.

Each form starts at that of its calls of which the graph at hand has the fewest; a form some call of which the graph
lacks is not looked for at all.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch.fx import Node

from eductor.compat import sort_key
from eductor.errors import BadPattern
from eductor.graph import GraphView, No
from eductor.patterns.compile.forms import Call, PatternForm, forms
from eductor.patterns.compile.program import MatchProgram, anchored, compiled
from eductor.patterns.compile.steps import MatchStep, Slots
from eductor.patterns.language.pattern import Pattern, Tolerance
from eductor.patterns.match.match import Match, completed
from eductor.patterns.match.node_readings import Readings
from eductor.patterns.match.spellings import sources


class Variant(Protocol):
    """One spelling of a pattern: what it requires of a graph is known before it is made."""

    @property
    def required(self) -> frozenset[Any]:
        """Operators without which it cannot match."""
        ...

    @property
    def pattern(self) -> Pattern | None:
        """None where this torch lacks an operator of it."""
        ...


@dataclass(eq=False)
class Part:
    """One spelling of a rule's pattern, brought to its plain forms when a graph could have it."""

    variant: Variant
    tolerated: frozenset[Tolerance]
    problem: str = ""
    """Why it is left out: a function that cannot be traced breaks nobody's compile."""

    @functools.cached_property
    def forms(self) -> tuple[PatternForm, ...]:
        try:
            pattern = self.variant.pattern
        except BadPattern as error:
            self.problem = str(error)
            return ()
        return () if pattern is None else forms(pattern, self.tolerated)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A form found at an anchor node, with the number of its rule: a match, or why the whole is none."""

    rule: int
    program: MatchProgram
    found: Match | No
    anchor: Node


@dataclass(slots=True)
class _Branch:
    """A node of the tree: the steps that can follow, and the programs that end here."""

    edges: dict[MatchStep, _Branch] = field(default_factory=dict)
    ends: list[tuple[int, MatchProgram]] = field(default_factory=list)


_MOST_TREES = 32
"""Graphs of one model ask for few; those of many models need not stay."""
_Root = tuple[tuple[Any, ...], Any, frozenset[Tolerance]]


class Index:
    """Looks for the patterns of some rules in graphs: each rule is given by the spellings of its pattern."""

    def __init__(self, rules: Sequence[Sequence[Part]]) -> None:
        self._rules = rules
        self._programs: dict[Call, MatchProgram] = {}
        self._trees: dict[tuple[Call, ...], dict[_Root, tuple[MatchProgram, _Branch]]] = {}

    def candidates(self, view: GraphView, readings: Readings | None = None) -> list[Candidate]:
        """Everything that is found: the rules in their order, the matches of one in the order of the graph."""
        readings = readings or Readings(view.bind)
        chosen = list(self._chosen(view))
        found: list[Candidate] = []
        known: set[Any] = set()
        spellings = Counter(rule for rule, _ in chosen)
        for first, branch in self._tree(chosen).values():
            assert first.anchor is not None
            for node in possible(view, first.anchor, first.form.tolerated):
                for start in anchored(readings, node, first.anchor, first.form):
                    for rule, program, slots in _walk(branch, readings, [start]):
                        key = program.key(slots) if spellings[rule] > 1 else None
                        if key is not None and (rule, node, key) in known:
                            continue
                        match = completed(program, slots, readings, node)
                        found.append(Candidate(rule, program, match, node))
                        if key is not None and isinstance(match, Match):
                            known.add((rule, node, key))
        # Of several alternatives the first has its way, wherever it stands.
        order = {program: i for i, (_, program) in enumerate(chosen)}
        return sorted(_distinct(found), key=lambda c: (order[c.program], sort_key(_place(c))))

    def again(self, candidate: Candidate, readings: Readings) -> Match | No:
        """The same form at the same anchor after edits; if possible, a match that binds the same nodes."""
        found: Match | No = No("the graph changed meanwhile")
        wanted = candidate.found.named() if isinstance(candidate.found, Match) else set()
        for start in candidate.program.starts(readings, candidate.anchor):
            for slots in candidate.program.solutions(readings, start):
                match = completed(candidate.program, slots, readings, candidate.anchor)
                if isinstance(match, Match) and match.named() == wanted:
                    return match
                if not isinstance(found, Match):
                    found = match
        return found

    def _chosen(self, view: GraphView) -> Iterator[tuple[int, MatchProgram]]:
        counts: dict[tuple[Any, frozenset[Tolerance]], int] = {}

        def count(keys: Sequence[Any], tolerated: frozenset[Tolerance]) -> int:
            total = 0
            for key in keys:
                if (key, tolerated) not in counts:
                    counts[key, tolerated] = sum(len(view.calls(s)) for s in set(sources(key, tolerated)))
                total += counts[key, tolerated]
            return total

        for number, parts in enumerate(self._rules):
            possible = (p for p in parts if all(count((key,), p.tolerated) for key in p.variant.required))
            for form in (form for part in possible for form in part.forms):
                sizes = [count(call.keys, form.tolerated) for call in form.calls]
                if all(sizes):
                    yield number, self._program(form, form.calls[sizes.index(min(sizes))])

    def _program(self, form: PatternForm, anchor: Call) -> MatchProgram:
        if anchor not in self._programs:
            self._programs[anchor] = compiled(form, anchor)
        return self._programs[anchor]

    def _tree(self, chosen: list[tuple[int, MatchProgram]]) -> dict[_Root, tuple[MatchProgram, _Branch]]:
        """The tree of these programs: built once, and again only where a graph asks for other anchors."""
        key = tuple(program.anchor for _, program in chosen if program.anchor is not None)
        if key not in self._trees:
            if len(self._trees) >= _MOST_TREES:
                self._trees.clear()
            roots: dict[_Root, tuple[MatchProgram, _Branch]] = {}
            for number, program in chosen:
                assert program.anchor is not None
                root = (program.anchor.keys, program.anchor.overloads, program.form.tolerated)
                _, branch = roots.setdefault(root, (program, _Branch()))
                for step in program.steps:
                    branch = branch.edges.setdefault(step, _Branch())
                branch.ends.append((number, program))
            self._trees[key] = roots
        return self._trees[key]


def possible(view: GraphView, call: Call, tolerated: frozenset[Tolerance]) -> list[Node]:
    """The nodes of a graph that could be a call of a form, by their operators alone."""
    found = {node for key in call.keys for source in sources(key, tolerated) for node in view.calls(source)}
    return sorted(found, key=sort_key)


def _walk(branch: _Branch, readings: Readings, slots: Slots) -> Iterator[tuple[int, MatchProgram, Slots]]:
    depth = len(slots)
    while True:
        for rule, program in branch.ends:
            yield rule, program, list(slots)
        if len(branch.edges) != 1:
            break
        ((step, branch),) = branch.edges.items()
        outcomes = step.outcomes(readings, slots)
        if len(outcomes) != 1:
            yield from _follow(step, outcomes, branch, readings, slots)
            del slots[depth:]
            return
        if step.stores:
            slots.append(outcomes[0])
    for step, child in branch.edges.items():
        yield from _follow(step, step.outcomes(readings, slots), child, readings, slots)
    del slots[depth:]


def _follow(
    step: MatchStep, outcomes: Sequence[Any], child: _Branch, readings: Readings, slots: Slots
) -> Iterator[tuple[int, MatchProgram, Slots]]:
    for outcome in outcomes:
        if step.stores:
            slots.append(outcome)
        yield from _walk(child, readings, slots)
        if step.stores:
            slots.pop()


def _distinct(found: list[Candidate]) -> list[Candidate]:
    """Each match once, however often it was found; where an anchor has a match of a rule, its misses do not count."""
    matched = {(c.rule, c.anchor) for c in found if isinstance(c.found, Match)}
    several = Counter((c.rule, c.found.nodes, c.found.outputs) for c in found if isinstance(c.found, Match))
    seen: set[Any] = set()
    kept: list[Candidate] = []
    for c in found:
        if isinstance(c.found, Match):
            key: Any = (c.rule, c.found.nodes, c.found.outputs)
            key = (*key, repr(c.found.bindings)) if several[key] > 1 else key
        elif (c.rule, c.anchor) in matched:
            continue
        else:
            key = (c.rule, c.anchor)
        if key not in seen:
            seen.add(key)
            kept.append(c)
    return kept


def _place(candidate: Candidate) -> Node:
    return candidate.found.output if isinstance(candidate.found, Match) else candidate.anchor
