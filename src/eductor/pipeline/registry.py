"""Which passes there are, where they come from, and in which order they run."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from eductor.errors import BadPass, EductorWarning, OrderConflict, UnknownName
from eductor.pipeline.base import STAGES, Pass, Stage

ENTRY_POINTS = "eductor.passes"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a stage's order: a pass by the module that has it, or a named slot, and why it stands there."""

    name: str
    reason: str
    module: str = ""

    @property
    def is_slot(self) -> bool:
        return not self.module


@dataclass(frozen=True, slots=True)
class Step:
    """A place in the order of a stage: a pass, or a slot that is empty or was filled with the passes after it."""

    stage: Stage
    name: str
    number: int
    reason: str
    source: str
    pass_: Pass | None = None
    module: str = ""

    @property
    def address(self) -> str:
        return f"{self.stage}/{self.name}" + (f"#{self.number}" if self.number > 1 else "")

    @property
    def is_slot(self) -> bool:
        return self.pass_ is None and not self.module

    def load(self) -> Pass:
        """The pass itself; a built-in one is imported when it is first needed."""
        if self.pass_ is not None:
            return self.pass_
        found = getattr(importlib.import_module(self.module), self.name)
        assert isinstance(found, Pass), f"{self.module}:{self.name} is not a pass"
        return found

    def is_called(self, name: str) -> bool:
        """Whether a name means this step: `name` means all of that name, `name#2` the second."""
        plain, _, number = name.partition("#")
        return self.name == plain and (not number or str(self.number) == number)


@dataclass(frozen=True, slots=True)
class Extra:
    """A pass from outside the built-in order, and who brought it."""

    pass_: Pass
    source: str


@dataclass(frozen=True)
class Registry:
    """The built-in orders and the passes that were added to them; a value."""

    orders: tuple[tuple[Stage, tuple[Row, ...]], ...]
    extras: tuple[Extra, ...] = ()

    @staticmethod
    def default() -> Registry:
        """The built-in passes and those that installed packages add by the entry point group `eductor.passes`."""
        return _default()

    def with_passes(self, passes: Iterable[Pass], source: str = "options") -> Registry:
        """The same registry with more passes; nothing else is changed by this."""
        return replace(self, extras=(*self.extras, *(Extra(p, source) for p in passes)))

    def order(self, stage: Stage) -> list[Step]:
        """The steps of a stage in the order in which they run."""
        rows = dict(self.orders)[stage]
        extras = [e for e in self.extras if stage in e.pass_.stages]
        return numbered(_resolve(stage, rows, extras))

    def steps(self) -> list[Step]:
        return [step for stage in STAGES for step in self.order(stage)]

    def get(self, stage: Stage, name: str) -> Step:
        """The step of that name; unknown names are errors that suggest the nearest."""
        steps = self.order(stage)
        found = next((s for s in steps if s.is_called(name)), None)
        if found is None:
            raise UnknownName(f"pass of the stage {stage}", name, [s.name for s in steps])
        return found


@functools.cache
def _default() -> Registry:
    from eductor.passes import ORDERS

    registry = Registry(tuple(ORDERS.items()))
    points = sorted(
        importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda e: (e.dist.name if e.dist else "", e.name)
    )
    for point in points:
        source = point.dist.name if point.dist else point.value
        try:
            registry = registry.with_passes(_passes_of(point.load(), point.value), source)
        except Exception as error:
            warnings.warn(
                f"the passes of {source} ({point.value}) are left out: {error!r}", EductorWarning, stacklevel=2
            )
    return registry


def _passes_of(loaded: Any, where: str) -> list[Pass]:
    found = [loaded] if isinstance(loaded, Pass) else list(loaded() if callable(loaded) else loaded)
    if not all(isinstance(p, Pass) for p in found):
        raise BadPass(f"{where} must be a pass, a list of passes, or a function that returns one, not {loaded!r}")
    return found


DEFAULT_SLOTS: dict[Stage, str] = {
    "pre_grad": "pre_grad_custom_pass",
    "joint": "joint_custom_post_pass",
    "post_grad": "post_grad_custom_post_pass",
}


def _resolve(stage: Stage, rows: tuple[Row, ...], extras: list[Extra]) -> list[Step]:
    """Places extras among the rows: directly after what they want to follow, directly before what they want to precede.

    The result depends on names and constraints alone, not on the order in which the extras were added.
    """
    taken: dict[str, str] = {row.name: "eductor" for row in rows}
    for extra in extras:
        name = extra.pass_.name
        if name in taken:
            raise BadPass(
                f"two passes of the stage {stage} are called {name!r}: one from {taken[name]}, one from {extra.source}."
            )
        taken[name] = extra.source
    for extra in extras:
        for other in (*extra.pass_.after, *extra.pass_.before, *([extra.pass_.slot] if extra.pass_.slot else [])):
            if other.partition("#")[0] not in taken:
                raise UnknownName(
                    f"pass (in the constraints of {extra.pass_.name!r}, from {extra.source})", other, taken
                )
    placed = {e.pass_.name: e for e in sorted(extras, key=lambda e: e.pass_.name)}
    slotted: dict[str, list[Extra]] = {}
    waiting: dict[str, Extra] = {}
    for extra in placed.values():
        p = extra.pass_
        if p.after or p.before:
            waiting[p.name] = extra
        else:
            slotted.setdefault(p.slot or DEFAULT_SLOTS[stage], []).append(extra)
    return _Placement(stage, rows, slotted, waiting).run()


class _Placement:
    """One resolution: rows are emitted in order, waiting extras as soon (or as late) as their constraints say."""

    def __init__(
        self, stage: Stage, rows: tuple[Row, ...], slotted: dict[str, list[Extra]], waiting: dict[str, Extra]
    ) -> None:
        self.stage = stage
        self.rows = list(rows)
        self.slotted = slotted
        self.waiting = waiting
        self.steps: list[Step] = []

    def run(self) -> list[Step]:
        while self.rows or self.waiting:
            extra = self._ready(eager=True)
            if extra is None and self.rows and not self._blockers(self.rows[0].name):
                self._emit_row(self.rows.pop(0))
                continue
            extra = extra or self._ready(eager=False)
            if extra is None:
                raise OrderConflict(self._explain())
            del self.waiting[extra.pass_.name]
            self._emit(extra)
        return self.steps

    def _ready(self, *, eager: bool) -> Extra | None:
        """An extra whose predecessors all ran. An eager one has predecessors; one without waits until it blocks a row."""
        for name, extra in self.waiting.items():
            ready = all(map(self._is_done, extra.pass_.after)) and not self._blockers(name)
            if ready and bool(extra.pass_.after) == eager:
                if eager or not self.rows or self._precedes(name, self.rows[0].name, set()):
                    return extra
        return None

    def _is_done(self, name: str) -> bool:
        """Whether all passes of a name ran, or (`name#2`) that one."""
        plain, _, number = name.partition("#")
        if number:
            return self._emitted(plain) >= int(number)
        in_rows = any(row.name == plain for row in self.rows)
        slots = {
            slot.partition("#")[0]
            for slot, extras in self.slotted.items()
            if any(e.pass_.name == plain for e in extras)
        }
        in_slots = any(row.name in slots for row in self.rows)
        return not in_rows and not in_slots and plain not in self.waiting

    def _emitted(self, name: str) -> int:
        return sum(step.name == name for step in self.steps)

    def _precedes(self, name: str, row: str, seen: set[str]) -> bool:
        """Whether a row cannot run before the extra of that name, directly or through other extras."""
        seen.add(name)
        targets = {b.partition("#")[0] for b in self.waiting[name].pass_.before}
        targets |= {n for n, e in self.waiting.items() if name in e.pass_.after}
        return row in targets or any(
            self._precedes(t, row, seen) for t in targets if t in self.waiting and t not in seen
        )

    def _blockers(self, name: str) -> list[str]:
        """The waiting extras that want to run before the next pass of a name."""
        names = {name, f"{name}#{self._emitted(name) + 1}"}
        return [n for n, e in self.waiting.items() if names & set(e.pass_.before)]

    def _emit(self, extra: Extra) -> None:
        p = extra.pass_
        wants = (
            [f"after {a}" for a in p.after] + [f"before {b}" for b in p.before] + ([f"in {p.slot}"] if p.slot else [])
        )
        reason = f"asked for by {extra.source}" + (f": {', '.join(wants)}" if wants else "")
        self.steps.append(Step(self.stage, p.name, 1, reason, extra.source, p))

    def _emit_row(self, row: Row) -> None:
        self.steps.append(Step(self.stage, row.name, 1, row.reason, "eductor", None, row.module))
        if row.is_slot:
            number = self._emitted(row.name)
            for extra in [*self.slotted.get(row.name, ()), *self.slotted.get(f"{row.name}#{number}", ())]:
                self._emit(extra)

    def _explain(self) -> str:
        """Names both sides of the constraints that cannot hold together."""
        wishes = []
        for name, extra in self.waiting.items():
            for other in extra.pass_.after:
                wishes.append(f"{name!r} (from {extra.source}) wants to run after {other!r}")
            for other in extra.pass_.before:
                wishes.append(f"{name!r} (from {extra.source}) wants to run before {other!r}")
        rows = ", ".join(r.name for r in self.rows[:6])
        return (
            f"the passes of the stage {self.stage} cannot be ordered: {'; '.join(wishes)}"
            + (f"; and the built-in order has {rows} in this order" if rows else "")
            + ". Drop one of these constraints."
        )


def numbered(steps: list[Step]) -> list[Step]:
    """Steps of one name are told apart by their number."""
    seen: dict[str, int] = {}
    result = []
    for step in steps:
        seen[step.name] = seen.get(step.name, 0) + 1
        result.append(replace(step, number=seen[step.name]))
    return result
