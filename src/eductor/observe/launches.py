"""What became of replayed launches: a report on all compiled programs that live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eductor.launches import live_programs
from eductor.observe.table import as_text


class LaunchesReport(list[dict[str, Any]]):
    """One dictionary for each program, with what was decided for each of its sizes; printed, it is a table."""

    def __str__(self) -> str:
        header = ("graph", "sizes", "state", "replayed", "ordinary", "blocked", "captures", "reason")
        return as_text(header, (row for program in self for row in _rows(program)))


def launches_report() -> LaunchesReport:
    """What became of the launches of each live program that can replay them: how its calls ran, and why."""
    return LaunchesReport(program.to_json() for program in live_programs())


def _rows(program: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """A row for each set of sizes and each graph; what was decided for the sizes stands in the first."""
    for shape in program["shapes"]:
        decided = shape["blocked"], shape["captures"], shape["reason"] or ""
        for part, calls in shape["calls"].items():
            sizes = ", ".join(map(str, shape["sizes"]))
            yield f"{program['graph']} {part}", sizes, shape["state"], calls["replayed"], calls["ordinary"], *decided
            decided = "", "", ""
