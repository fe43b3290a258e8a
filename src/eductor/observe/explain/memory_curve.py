"""The curve of memory against time of one graph: read from JSON, printed, and plotted with matplotlib, which is an extra."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eductor.errors import BadOption, NotInstalled
from eductor.observe.table import as_text
from eductor.partition.prices import PICOSECONDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
PANELS = 12
"""The most panels in a figure; of more graphs, those that save most are shown."""
COLUMNS = 3


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


def check_can_draw(file: str | os.PathLike[str]) -> None:
    """Raises early what `draw` and saving would raise after a long compile."""
    path = Path(file)
    if path.suffix[1:] not in FORMATS:
        raise BadOption(
            f"{str(file)!r} is not the name of a picture: it must end in {', '.join(f'.{f}' for f in FORMATS)}."
        )
    if not path.absolute().parent.is_dir():
        raise BadOption(f"there is no folder {str(path.parent)!r} to draw {path.name!r} in: create it first.")
    _check_installed()


def draw(curves: Mapping[str, MemoryCurve]) -> Figure:
    """A panel for each curve, under its title. `figure.savefig` takes a path, or a file object and a format."""
    _check_installed()
    if not curves:
        raise BadOption("there is no curve to draw: no graph has a backward.")
    from matplotlib.figure import Figure

    most = sorted(curves, key=lambda title: -curves[title].points[0].bytes)[:PANELS]
    titles = [title for title in curves if title in most]
    columns = min(COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = Figure(figsize=(5.5 * columns, 4.2 * rows), layout="constrained")
    for number, title in enumerate(titles, 1):
        _panel(figure.add_subplot(rows, columns, number), title, curves[title])
    left_out = len(curves) - len(titles)
    figure.suptitle("Estimated memory over time" + (f" ({left_out} smaller graphs left out)" if left_out else ""))
    return figure


def _check_installed() -> None:
    if find_spec("matplotlib") is None:
        raise NotInstalled("matplotlib", "plot", "draw the memory-time curve")


def _panel(axes: Axes, title: str, curve: MemoryCurve) -> None:
    unit, size = curve.unit()
    times, chosen = [1e6 * point.seconds for point in curve.points], curve.chosen
    axes.plot(times, [point.peak / size for point in curve.points], "s-", color="tab:orange", label="peak")
    axes.plot(times, [point.bytes / size for point in curve.points], "o-", color="tab:blue", label="saved")
    rings = [1e6 * chosen.seconds] * 2, [chosen.peak / size, chosen.bytes / size]
    axes.plot(*rings, "ko", markersize=12, fillstyle="none", label=f"chosen: budget {chosen.budget_text}")
    for budgets, point in curve.distinct():
        place = 1e6 * point.seconds, point.bytes / size
        axes.annotate(
            budgets, place, xytext=(-5, -3), textcoords="offset points", ha="right", va="top", fontsize="x-small"
        )
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("time of saving and recomputing, us")
    axes.set_ylabel(f"memory, {unit}")
    axes.set_ylim(bottom=-0.07 * axes.get_ylim()[1])
    axes.margins(x=0.1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
