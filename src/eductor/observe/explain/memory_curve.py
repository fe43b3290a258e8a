"""The curve of memory against time of one graph: a value that is read from JSON and prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eductor.observe.table import as_text
from eductor.partition.prices import PICOSECONDS


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The estimated memory and time at one budget."""

    budget: float | Mapping[str, float]
    bytes: int
    """Bytes of saved values, without inputs."""
    seconds: float
    """Time of saving and recomputing."""
    peak: int
    """Peak bytes of forward and backward, beyond the inputs."""

    @property
    def budget_text(self) -> str:
        """The budget as text."""
        if isinstance(self.budget, Mapping):
            return "by modules"
        return f"{self.budget:.3g}" if self.budget <= 1 else f"{self.budget:,} bytes"

    @property
    def place(self) -> tuple[int, int, int]:
        """Its coordinates, regardless of the budget; times are compared to the picosecond."""
        return self.bytes, round(self.seconds * PICOSECONDS), self.peak


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """The possible choices for a graph, and the one that its compile made."""

    points: tuple[CurvePoint, ...]
    """From the budget 1 down to 0."""
    chosen: CurvePoint
    """On the curve, or off it if a plan was given."""

    @staticmethod
    def from_json(given: dict[str, Any]) -> MemoryCurve:
        """Reads what `partition.curve_to_json` gave."""
        return MemoryCurve(tuple(CurvePoint(**point) for point in given["points"]), CurvePoint(**given["chosen"]))

    def distinct(self) -> list[tuple[str, CurvePoint]]:
        """The distinct points, each with its range of budgets."""
        found: dict[tuple[int, int, int], list[CurvePoint]] = {}
        for point in self.points:
            found.setdefault(point.place, []).append(point)
        budgets = [dict.fromkeys(point.budget_text for point in (same[0], same[-1])) for same in found.values()]
        return [(" to ".join(texts), same[0]) for texts, same in zip(budgets, found.values(), strict=True)]

    def __str__(self) -> str:
        unit, size = self.unit()
        digits = 2 if size > 1 else 0
        points = self.distinct()
        if all(point.place != self.chosen.place for _, point in points):
            points = sorted([*points, ("", self.chosen)], key=lambda row: row[1].seconds)
        rows = [
            (
                budgets,
                f"{point.bytes / size:.{digits}f}",
                f"{point.peak / size:.{digits}f}",
                f"{1e6 * point.seconds:.2f}",
                f"<- chosen: {self.chosen.budget_text}" if point.place == self.chosen.place else "",
            )
            for budgets, point in points
        ]
        return as_text(("budget", f"saved, {unit}", f"peak, {unit}", "time, us", ""), rows)

    def unit(self) -> tuple[str, int]:
        """The largest fitting unit for all of its memory, and the unit's bytes."""
        largest = max(max(point.bytes, point.peak) for point in (*self.points, self.chosen))
        units = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
        return next(((name, size) for name, size in units.items() if largest >= size), ("bytes", 1))
