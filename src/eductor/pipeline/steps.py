"""The steps of a stage, and how passes with constraints are inserted into their order."""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from eductor.errors import BadPass, OrderConflict, UnknownName
from eductor.pipeline.base import Pass, Stage

DEFAULT_SLOTS: dict[Stage, str] = {
    "pre_grad": "pre_grad_custom_pass",
    "joint": "joint_custom_post_pass",
    "post_grad": "post_grad_custom_post_pass",
    "lower": "lower_custom_pass",
}
"""The slots of passes without constraints; in a stage without such a slot, they go to its end."""

IN_GIVEN_ORDER = "custom_backend_passes"
"""The slot that keeps the given order of its passes: one author's passes for a custom device."""


@dataclass(frozen=True, slots=True)
class Step:
    """A place in the order of a stage: a pass, or a slot, which is followed by the passes that fill it."""

    stage: Stage
    name: str
    number: int
    reason: str
    source: str
    pass_: Pass | None = None
    module: str = ""
    slot: str = ""
    limit: int | None = None
    """The limit of the pass's matches; None for all."""
    required: bool = False
    """Whether the engine requires it: it cannot be dropped or limited."""
    on: bool = True
    """Whether the pass runs unasked."""

    @property
    def address(self) -> str:
        return f"{self.stage}/{self.name}" + (f"#{self.number}" if self.number > 1 else "")

    @property
    def is_slot(self) -> bool:
        return self.pass_ is None and not self.module

    @property
    def is_built_in(self) -> bool:
        return bool(self.module)

    @property
    def is_as_shipped(self) -> bool:
        """Whether it is a built-in pass to which no rule can have been added, as its module is not imported."""
        return self.is_built_in and self.pass_ is None and self.module not in sys.modules

    def load(self) -> Pass:
        """The pass; a built-in one is imported on first use."""
        return self.pass_ if self.pass_ is not None else _built_in(self.module, self.name)

    def is_called(self, name: str) -> bool:
        """Whether a name refers to this step: `name` to all of that name, `name#2` to the second, `joint/name` to a stage's."""
        return name.removeprefix(f"{self.stage}/") in (self.name, f"{self.name}#{self.number}")


@functools.cache
def _built_in(module: str, name: str) -> Pass:
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Pass), f"{module}:{name} is not a pass"
    return found


def numbered(steps: Iterable[Step]) -> list[Step]:
    """Numbers the steps of one stage that share a name."""
    seen: dict[str, int] = {}
    result = []
    for step in steps:
        number = seen[step.name] = seen.get(step.name, 0) + 1
        result.append(step if step.number == number else replace(step, number=number))
    return result


@dataclass(frozen=True, slots=True)
class Extra:
    """An added pass with the package or option that added it."""

    pass_: Pass
    source: str

    @property
    def is_constrained(self) -> bool:
        return bool(self.pass_.after or self.pass_.before)

    def step(self, stage: Stage, slot: str = "") -> Step:
        p = self.pass_
        wants = [f"after {a}" for a in p.after] + [f"before {b}" for b in p.before] + ([f"in {p.slot}"] * bool(p.slot))
        reason = f"asked for by {self.source}" + (f": {', '.join(wants)}" if wants else "")
        return Step(stage, p.name, 1, reason, self.source, p, slot=slot, on=p.on)


def place(stage: Stage, steps: Iterable[Step], extras: Sequence[Extra]) -> list[Step]:
    """Inserts extras among steps, which keep their order: in a slot, or as close as possible to their constraints.

    Slots keep the given order. The places of the others depend on names and constraints only.
    """
    steps = list(steps)
    _check_names(stage, steps, extras)
    for extra in extras:
        if not extra.is_constrained:
            steps = _fill(stage, steps, extra)
    constrained = sorted((e for e in extras if e.is_constrained), key=lambda e: e.pass_.name)
    return numbered(_Order(stage, numbered(steps), constrained).resolve() if constrained else steps)


def _check_names(stage: Stage, steps: list[Step], extras: Sequence[Extra]) -> None:
    """Checks that names are unique; only slots may repeat a name: of plain functions, or of a pass that runs elsewhere."""
    taken: dict[str, Step] = {s.name: s for s in steps}
    for extra in extras:
        p = extra.pass_
        other = taken.setdefault(p.name, step := extra.step(stage))
        if other is not step and not (p.slot and not other.is_slot and _may_share_name(p, other.load())):
            raise BadPass(
                f"two passes of the stage {stage} are called {p.name!r}: one from {other.source}, one from "
                f"{extra.source}. Rename one, or replace one by the other with Pipeline.replaced."
            )


def _may_share_name(a: Pass, b: Pass) -> bool:
    return a.fn is b.fn or (a.foreign and b.foreign)


def _fill(stage: Stage, steps: list[Step], extra: Extra) -> list[Step]:
    """Adds a pass to the end of each occurrence of its slot; without the default slot, to the end of the stage."""
    wanted = extra.pass_.slot or DEFAULT_SLOTS.get(stage, "")
    ends = [_end_of_slot(steps, i) for i, s in enumerate(steps) if s.is_slot and s.is_called(wanted)]
    if not ends and extra.pass_.slot:
        raise UnknownName(f"slot of the stage {stage}", wanted, [s.name for s in steps if s.is_slot])
    for end in reversed(ends or [len(steps)]):
        steps.insert(end, extra.step(stage, _plain(wanted) if ends else ""))
    return steps


def _end_of_slot(steps: list[Step], at: int) -> int:
    """The index after the passes that fill the slot at an index."""
    end = at + 1
    while steps[at].is_slot and end < len(steps) and steps[end].slot == steps[at].name:
        end += 1
    return end


def _plain(name: str) -> str:
    return name.rpartition("/")[2].partition("#")[0]


class _Order:
    """The constraints on the order of a stage, with reasons: the given order, and those of added passes."""

    def __init__(self, stage: Stage, steps: list[Step], constrained: list[Extra]) -> None:
        self.stage = stage
        self.fixed = len(steps)
        self.items = [*steps, *(e.step(stage) for e in constrained)]
        self.asked: dict[int, list[int]] = {}
        self.earlier: list[dict[int, str]] = [{} for _ in self.items]
        for i in range(1, self.fixed):
            self.earlier[i][i - 1] = ""
        for i, extra in enumerate(constrained, start=self.fixed):
            self._ask(i, extra)
        self.above = [self._all_before(i) for i in range(len(self.items))]

    def _ask(self, i: int, extra: Extra) -> None:
        """Adds constraints: after the last step of a name, before its first; after a slot means after the passes in it."""
        who = f"{extra.pass_.name!r} (from {extra.source}) wants to run"
        after = [(name, self._called(name, extra)[-1]) for name in extra.pass_.constraints("after", self.stage)]
        before = [(name, self._called(name, extra)[0]) for name in extra.pass_.constraints("before", self.stage)]
        for name, other in after:
            last = _end_of_slot(self.items[: self.fixed], other) - 1 if other < self.fixed else other
            filled = f", which {self.items[last].name!r} fills" if last != other else ""
            self.earlier[i][last] = f"{who} after {name!r}{filled}"
        for name, other in before:
            self.earlier[other][i] = f"{who} before {name!r}"
        self.asked[i] = [other for _, other in (*after, *before)]

    def _called(self, name: str, extra: Extra) -> list[int]:
        found = [i for i, step in enumerate(self.items) if step.is_called(name)]
        if not found:
            kind = f"pass of the stage {self.stage} (in the constraints of {extra.pass_.name!r}, from {extra.source})"
            raise UnknownName(kind, name, [s.name for s in self.items])
        return found

    def _all_before(self, item: int) -> set[int]:
        found: set[int] = set()
        pending = [item]
        while pending:
            new = self.earlier[pending.pop()].keys() - found
            found |= new
            pending += new
        return found

    def resolve(self) -> list[Step]:
        """Inserts the passes one by one between those that they must follow and precede. There always is such a gap, as
        the steps placed so far obey all constraints, even those that follow only through missing ones."""
        try:
            TopologicalSorter(dict(enumerate(self.earlier))).prepare()
        except CycleError as error:
            raise OrderConflict(self._explain(error.args[1])) from None
        order = list(range(self.fixed))
        waiting = list(range(self.fixed, len(self.items)))
        while waiting:
            i = self._next(waiting)
            waiting.remove(i)
            order.insert(self._gap(i, order), i)
        return [self.items[i] for i in order]

    def _next(self, waiting: list[int]) -> int:
        """A pass whose neighbours are placed already, if there is one; passes with equal constraints end up alphabetical."""
        ready = [i for i in waiting if not set(self.asked[i]) & set(waiting)]
        followers = [i for i in ready if self._follows(i)]
        return max(followers) if followers else min(ready or waiting)

    def _follows(self, i: int) -> bool:
        """Whether a pass has an `after` constraint: it is then placed directly after that step, else directly before one."""
        return bool(self.items[i].load().constraints("after", self.stage))

    def _gap(self, i: int, order: list[int]) -> int:
        behind = max((at + 1 for at, other in enumerate(order) if other in self.above[i]), default=None)
        front = min((at for at, other in enumerate(order) if i in self.above[other]), default=None)
        wanted = (behind, front) if self._follows(i) else (front, behind)
        return next((at for at in wanted if at is not None), self._default_gap(order))

    def _default_gap(self, order: list[int]) -> int:
        """The index for passes that have constraints only among each other."""
        steps = [self.items[i] for i in order]
        slot = next((at for at, s in enumerate(steps) if s.is_slot and s.name == DEFAULT_SLOTS.get(self.stage)), None)
        return len(steps) if slot is None else _end_of_slot(steps, slot)

    def _explain(self, cycle: list[int]) -> str:
        """Describes a cycle of constraints, with both sides of each."""
        # It starts with the second step of a constraint, so that steps in their given order stand together.
        start = next(k for k, (a, b) in enumerate(itertools.pairwise(cycle)) if self.earlier[b][a])
        path = [*cycle[start:-1], *cycle[: start + 1]]
        reasons: list[str] = []
        first: Step | None = None
        for earlier, later in itertools.pairwise(path):
            if reason := self.earlier[later][earlier]:
                reasons.append(reason)
                first = None
                continue
            if first is not None:
                reasons.pop()
            first = first or self.items[earlier]
            reasons.append(f"{first.name!r} (from {first.source}) runs before {self.items[later].name!r}")
        return f"the passes of the stage {self.stage} cannot be ordered: {'; '.join(reasons)}. Drop one of these constraints."
