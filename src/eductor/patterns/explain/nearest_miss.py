"""Finds the nearest miss of a pattern: the steps continue past failures, and the path that matches most is kept.

A step that fails leaves its slot unset, and steps that would read it are left out. A way is given up as soon as it
cannot become better than the best one so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from eductor.graph import GraphView, No
from eductor.graph.provenance import source_line
from eductor.patterns.compile.forms import PatternForm
from eductor.patterns.compile.index import possible
from eductor.patterns.compile.program import Every, MatchProgram, compiled, element
from eductor.patterns.compile.steps import CallStep, MatchStep, Same, Slots
from eductor.patterns.language.pattern import spelled
from eductor.patterns.match.constants import argument
from eductor.patterns.match.match import completed
from eductor.patterns.match.node_readings import Readings

MOST_FAILURES = 6
"""A way on which more steps fail ends there."""
MOST_STEPS = 60_000
"""So many steps are taken in all, the rarest calls of the pattern first: about a second."""
_UNSET: Any = object()


@dataclass(frozen=True, slots=True)
class Missed:
    """A part of the pattern, the node of the graph that disagrees with it, and why. Without a node, the graph has none."""

    pattern: str
    node: Node | None
    reason: str

    @property
    def source(self) -> str:
        """The line of the user's program, as `file:line: code`; empty if unknown."""
        return source_line(self.node) if self.node is not None else ""

    def __str__(self) -> str:
        return f"{self.node.name}: {self.reason}" if self.node is not None else self.reason


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest miss: how many calls of a form were found, and the failures, the most important first."""

    form: PatternForm
    found: int
    calls: int
    failures: tuple[Missed, ...]


def nearest(forms: Sequence[PatternForm], views: Sequence[GraphView]) -> Nearest | None:
    """The nearest miss of any of the forms in any of the graphs; None where no node could be any of their calls."""
    search = _Search(Readings(), _Budget(MOST_STEPS))
    for view in views:
        for rank, program, nodes in _by_rarity(forms, view):
            if not search.budget.spend(len(program.steps)) or (rank > 0 and search.has_all_calls):
                break
            plan = _Plan(program)
            for node in nodes:
                for start in program.starts(search.readings, node):
                    search.look(plan, start)
    return search.told() if search.best is not None else None


def _by_rarity(forms: Sequence[PatternForm], view: GraphView) -> Iterator[tuple[int, MatchProgram, list[Node]]]:
    """Each form from each of its calls: all from their rarest, then all from the next one."""
    anchors = []
    for number, form in enumerate(forms):
        by_call = [(call, nodes) for call in form.calls if (nodes := possible(view, call, form.tolerated))]
        by_call.sort(key=lambda item: len(item[1]))
        anchors += [(rank, number, call, nodes) for rank, (call, nodes) in enumerate(by_call)]
    for rank, number, call, nodes in sorted(anchors, key=lambda anchor: anchor[:2]):
        yield rank, compiled(forms[number], call), nodes


@dataclass(slots=True)
class _Budget:
    left: int

    def spend(self, steps: int) -> bool:
        self.left -= steps
        return self.left > 0


class _Plan:
    """A program with the number of calls and steps that are lost if a step fails."""

    def __init__(self, program: MatchProgram) -> None:
        self.program = program
        self.steps = program.steps
        self.fills = list(_fills(program.steps))
        self.calls = [_calls_of(step) for step in self.steps]
        self.follow = [1] * len(self.steps)
        for i in reversed(range(len(self.steps))):
            maker = self.fills.index(self.steps[i].slot) if self.steps[i].slot in self.fills else None
            if maker is not None:
                self.calls[maker] += self.calls[i]
                self.follow[maker] += self.follow[i]
        self.total = sum(map(_calls_of, self.steps)) + (program.anchor is not None)

    def wanted(self, step: MatchStep, filled: int) -> str:
        """The part of the pattern that a step is about."""
        slot = filled if isinstance(step, CallStep) else step.slot
        said = next((call.said for call, at in self.program.calls.items() if at == slot), None)
        return spelled(said, 2) if said is not None else self.whole

    @property
    def whole(self) -> str:
        outputs = self.program.form.outputs
        return ", ".join(spelled(getattr(output, "said", output), 2) for output in outputs)


def _fills(steps: Sequence[MatchStep]) -> Iterator[int]:
    """The slot that each step fills; -1 where it only tests."""
    slot = 0
    for step in steps:
        slot += step.stores
        yield slot if step.stores else -1


def _calls_of(step: MatchStep) -> int:
    if isinstance(step, Every):
        return max(_Plan(program).total for program in step.programs)
    return int(isinstance(step, CallStep))


@dataclass(frozen=True, slots=True)
class _Failure:
    """A step that failed, with the slots as they were; or what was wrong with the whole."""

    plan: _Plan
    at: int
    slots: tuple[Any, ...]
    missed: No | None = None

    def told(self, readings: Readings) -> Missed:
        slots = list(self.slots)
        if self.missed is not None:
            calls = self.plan.program.calls.items()
            node = next(iter(self.missed.nodes), None)
            said = next((c.said for c, slot in calls if slots[slot].node is node), None)
            text = spelled(said, 2) if said is not None else self.plan.whole
            return Missed(text, node, self.missed.reason)
        step = self.plan.steps[self.at]
        missed = step.answer(readings, slots)
        assert isinstance(missed, No)  # it had no outcome
        return Missed(self.plan.wanted(step, self.plan.fills[self.at]), next(iter(missed.nodes), None), missed.reason)

    @property
    def loses_calls(self) -> bool:
        return self.missed is None and self.plan.calls[self.at] > 0


@dataclass(frozen=True, slots=True)
class _Way:
    plan: _Plan
    found: int
    failures: tuple[_Failure, ...]
    score: tuple[float, int, int]
    """The share of the calls that were found, then the fewest failures, then the most steps."""


@dataclass(slots=True)
class _Search:
    """The best way in one graph, or through one element of a list."""

    readings: Readings
    budget: _Budget
    best: _Way | None = None

    def look(self, plan: _Plan, start: Any) -> None:
        _Walk(self, plan, [start], plan.total, len(plan.steps)).go(0)

    @property
    def has_all_calls(self) -> bool:
        """Whether all calls were found, some with wrong arguments: no other start can find more."""
        return self.best is not None and self.best.score[0] == 1

    def told(self) -> Nearest:
        assert self.best is not None
        # That a call is missing matters more than that another one has a wrong argument.
        failures = sorted(self.best.failures, key=lambda failure: not failure.loses_calls)
        told = tuple(failure.told(self.readings) for failure in failures)
        plan = self.best.plan
        return Nearest(plan.program.form, self.best.found, plan.total, told)


@dataclass(slots=True)
class _Walk:
    """One way through a program; `calls` and `steps` are what it can still find at most."""

    search: _Search
    plan: _Plan
    slots: Slots
    calls: int
    steps: int
    failures: list[_Failure] = field(default_factory=list)

    def go(self, at: int) -> None:
        if at == len(self.plan.steps):
            self._end()
            return
        step = self.plan.steps[at]
        if any(self.slots[slot] is _UNSET for slot in _read(step)):
            self._on(at, step, _UNSET)
            return
        if not self.search.budget.spend(1):
            return
        outcomes = step.outcomes(self.search.readings, self.slots)
        for outcome in outcomes:
            self._on(at, step, outcome)
        if not outcomes:
            self._failed(at, step)

    def _on(self, at: int, step: MatchStep, outcome: Any) -> None:
        if step.stores:
            self.slots.append(outcome)
        self.go(at + 1)
        if step.stores:
            self.slots.pop()

    def _failed(self, at: int, step: MatchStep) -> None:
        inside = self._inside(step) if isinstance(step, Every) else None
        found = inside.found if inside is not None else 0
        new = inside.failures if inside is not None else (_Failure(self.plan, at, tuple(self.slots)),)
        calls, steps, failures = self.calls, self.steps, self.failures
        self.calls -= self.plan.calls[at] - found
        self.steps -= self.plan.follow[at]
        self.failures = [*failures, *new]
        if len(self.failures) > MOST_FAILURES:
            filled = [slot for slot in self.plan.program.calls.values() if slot < len(self.slots)]
            self.calls = sum(self.slots[slot] is not _UNSET for slot in filled)
            self._keep()
        elif self._is_better():
            self._on(at, step, _UNSET)
        self.calls, self.steps, self.failures = calls, steps, failures

    def _inside(self, step: Every) -> _Way | None:
        """The best way through the first element of a list that does not match."""
        node = self.slots[step.slot].node
        values = argument(self.slots[step.slot], step.place)
        readings = self.search.readings
        for value in values if isinstance(values, (list, tuple)) else ():
            start = element(node, value)
            if not any(True for program in step.programs for _ in program.solutions(readings, start)):
                search = _Search(readings, self.search.budget)
                for program in step.programs:
                    search.look(_Plan(program), start)
                return search.best
        return None

    def _end(self) -> None:
        program = self.plan.program
        if not self.failures and program.anchor is not None:
            whole = completed(program, list(self.slots), self.search.readings, self.slots[0].node)
            if not isinstance(whole, No):
                return
            self.failures = [_Failure(self.plan, -1, tuple(self.slots), whole)]
            self._keep()
            self.failures = []
        else:
            self._keep()

    def _keep(self) -> None:
        if self._is_better():
            self.search.best = _Way(self.plan, self.calls, tuple(self.failures), self._score)

    @property
    def _score(self) -> tuple[float, int, int]:
        return self.calls / max(self.plan.total, 1), -len(self.failures), self.steps

    def _is_better(self) -> bool:
        return self.search.best is None or self._score > self.search.best.score


def _read(step: MatchStep) -> tuple[int, ...]:
    return (step.slot, step.other) if isinstance(step, Same) else (step.slot,)
