"""Plots memory-time curves with matplotlib, which is an extra."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from eductor.errors import BadOption, NotInstalled
from eductor.observe.explain.memory_curve import MemoryCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
PANELS = 12
"""The most panels in a figure; of more graphs, those that save most are shown."""
COLUMNS = 3


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
