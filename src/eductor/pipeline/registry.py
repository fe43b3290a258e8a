"""The registry of passes: built-in and added ones, and the order in which they run."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from eductor.errors import BadPass, UnknownName, warn_uncounted
from eductor.pipeline.base import STAGES, Pass, Stage
from eductor.pipeline.steps import DEFAULT_SLOTS, IN_GIVEN_ORDER, Extra, numbered, place
from eductor.pipeline.steps import Step as Step

ENTRY_POINTS = "eductor.passes"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a stage's order: a pass, or the module that defines it, or a named slot, and the reason for its place."""

    name: str
    reason: str
    module: str = ""
    pass_: Pass | None = None
    required: bool = False
    """Whether the engine requires the pass."""
    on: bool = True
    """Whether the pass runs unasked. A row of a module repeats what the declaration there says: a compile imports no pass to ask."""

    @property
    def is_slot(self) -> bool:
        return not self.module and self.pass_ is None

    def step(self, stage: Stage) -> Step:
        source = "engine" if self.pass_ is not None else "eductor"
        on = self.on if self.pass_ is None else self.pass_.on
        return Step(stage, self.name, 1, self.reason, source, self.pass_, self.module, required=self.required, on=on)


_built_in: dict[Stage, tuple[Row, ...]] = {}


def set_built_in(orders: Mapping[Stage, tuple[Row, ...]]) -> None:
    """Declares the built-in orders; `eductor.passes` calls it on import, as this package imports no pass."""
    _built_in.update(orders)


@dataclass(frozen=True)
class Registry:
    """The built-in orders and the passes added to them; immutable."""

    orders: tuple[tuple[Stage, tuple[Row, ...]], ...]
    extras: tuple[Extra, ...] = ()

    @staticmethod
    def default() -> Registry:
        """The built-in passes, and those of installed packages with the entry point group `eductor.passes`."""
        return _default()

    @staticmethod
    def built_in() -> Registry:
        """The built-in passes only."""
        return Registry(tuple(_built_in.items()))

    def with_passes(self, passes: Iterable[Pass], source: str = "options") -> Registry:
        """A copy with more passes."""
        passes = list(passes)
        return self if not passes else replace(self, extras=(*self.extras, *(Extra(p, source) for p in passes)))

    def lowering(self, given: Iterable[Row | Pass | str]) -> Registry:
        """A copy with the lower stage of an engine: rows, passes, or names of built-in ones; and the slot."""
        rows = tuple(given)
        return self if rows == dict(self.orders).get("lower") else _lowering(self, rows)

    def order(self, stage: Stage) -> tuple[Step, ...]:
        """The steps of a stage, in order."""
        return self._placed[stage]

    @functools.cached_property
    def _placed(self) -> dict[Stage, tuple[Step, ...]]:
        return {stage: tuple(self._place(stage)) for stage in STAGES}

    def _place(self, stage: Stage) -> list[Step]:
        rows = [row.step(stage) for row in dict(self.orders).get(stage, ())]
        extras = [e for e in self.extras if stage in e.pass_.stages]
        return place(stage, numbered(rows), sorted(extras, key=_by_name))

    def steps(self) -> list[Step]:
        return [step for stage in STAGES for step in self.order(stage)]

    def get(self, stage: Stage, name: str) -> Step:
        """The first step of that name; an unknown name raises an error that suggests the nearest."""
        steps = self.order(stage)
        found = next((s for s in steps if s.is_called(name)), None)
        if found is None:
            raise UnknownName(f"pass of the stage {stage}", name, [s.name for s in steps])
        return found


@functools.lru_cache(maxsize=32)
def _lowering(registry: Registry, given: tuple[Row | Pass | str, ...]) -> Registry:
    orders = dict(registry.orders)
    known = {row.name: row for row in orders["lower"]}
    slot = known[DEFAULT_SLOTS["lower"]]
    rows = [_as_row(one, known) for one in given]
    orders["lower"] = tuple(rows if slot in rows else [slot, *rows])
    return replace(registry, orders=tuple(orders.items()))


def _as_row(given: Row | Pass | str, known: dict[str, Row]) -> Row:
    if isinstance(given, Row):
        return given
    if isinstance(given, Pass):
        return Row(given.staged("lower").name, "the engine asks for it", pass_=given)
    if given not in known:
        raise UnknownName("pass of the stage lower", given, known)
    return known[given]


def _by_name(extra: Extra) -> str:
    """Sort key: by name, so that registration order does not matter, except in the slot that keeps the given order."""
    return "" if extra.pass_.slot == IN_GIVEN_ORDER else extra.pass_.name


@functools.cache
def _default() -> Registry:
    registry = Registry.built_in()
    points = sorted(
        importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda e: (e.dist.name if e.dist else "", e.name)
    )
    for point in points:
        source = point.dist.name if point.dist else point.value
        try:
            registry = registry.with_passes(_passes_of(point.load(), point.value), source)
        except Exception as error:
            warn_uncounted(f"the passes of {source} ({point.value}) are left out: {error!r}")
    return registry


def _passes_of(loaded: Any, where: str) -> list[Pass]:
    given = loaded() if callable(loaded) else loaded
    found = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(p, Pass) for p in found):
        raise BadPass(f"{where} must be a pass, a list of passes, or a function that returns either, not {loaded!r}")
    return found
