"""The origins of a program's graphs: the function of each, and which part or recompile of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from eductor.compat import RESUMED, code_name, recompile_reason
from eductor.graph.provenance import source_line
from eductor.pipeline import Instrument, Recorder, StageRun

OriginKind = Literal["first", "after_graph_break", "called", "recompile"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a captured graph comes from."""

    function: str
    kind: OriginKind
    part: str
    """The part of the program that was captured, in words."""
    recompile_of: int | None
    recompile_reason: str
    compile_id: str
    source: str
    """The source of its first node, as `file:line: code`; empty if unknown."""

    def __str__(self) -> str:
        if self.recompile_of is None:
            return self.part
        why = f" ({self.recompile_reason})" if self.recompile_reason else ""
        return f"{self.part}, recompiled, as no earlier graph fits{why}; graph {self.recompile_of} is the first"


@dataclass
class Origins:
    """The origins of all graphs that a recorder sees, by number."""

    recorder: Recorder
    by_graph: dict[int, Origin] = field(default_factory=dict)

    def of_function(self, name: str) -> Instrument:
        """An instrument for one function's compiles; it must follow the recorder, whose numbers it uses."""
        return _OriginObserver(self, name)


@dataclass
class _OriginObserver(Instrument):
    origins: Origins
    function: str
    frames: dict[str, int] = field(default_factory=dict)
    """The first graph of each piece of code of this function."""

    def before_stage(self, run: StageRun) -> None:
        number = self.origins.recorder.stages[-1].graph
        if number in self.origins.by_graph:
            return
        frame = run.graph.compile_id.partition("/")[0]
        kind, part = self._part(code_name())
        first = self.frames.setdefault(frame, number) if frame else number
        again = first if first != number else None
        self.origins.by_graph[number] = Origin(
            function=self.function,
            kind="recompile" if again else kind,
            part=self.origins.by_graph[first].part if again else part,
            recompile_of=again,
            recompile_reason=recompile_reason() if again else "",
            compile_id=run.graph.compile_id,
            source=next((line for line in map(source_line, run.module.graph.nodes) if line), ""),
        )

    def _part(self, code: str) -> tuple[OriginKind, str]:
        resumed = re.fullmatch(RESUMED, code)
        if resumed is not None:
            inside = resumed["function"]
            where = self.function if inside in (self.function.rpartition(".")[2], "forward") else inside
            return "after_graph_break", f"{where} after the graph break in line {resumed['line']}"
        if self.frames:
            return "called", f"{code}, called by {self.function} outside of its graphs"
        return "first", self.function
