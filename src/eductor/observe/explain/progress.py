"""Shows the progress of a compile."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TextIO

from eductor.pipeline.instruments import Instrument, Numbering, PassRun, StageRun

CLEAR = "\r\x1b[2K"


@dataclass
class Progress(Instrument):
    """A progress line that is rewritten in place on a terminal; elsewhere one line per stage."""

    stream: TextIO
    _numbering: Numbering = field(default_factory=Numbering)
    _open: list[str] = field(default_factory=list)

    def before_stage(self, run: StageRun) -> None:
        number = self._numbering.number(run.graph, run.module)
        role = f" ({run.graph.role})" if run.graph.role in ("forward", "backward") else ""
        self._open.append(f"graph {number}, {run.name}{role}")
        self.say(self._open[-1])

    def after_stage(self, run: StageRun) -> None:
        self._open.pop()
        if not self._open:
            # Clear the line, as what runs next may print.
            self.clear()

    def failed_stage(self, run: StageRun, error: Exception) -> None:
        self.after_stage(run)

    def before_pass(self, run: PassRun) -> None:
        if self._rewrites and self._open:
            self.say(f"{self._open[-1]}: {run.step.name}")

    def say(self, text: str) -> None:
        """Shows a text as the current progress; callers may use it between compiles."""
        if not self._rewrites:
            print(text, file=self.stream, flush=True)
            return
        width = shutil.get_terminal_size().columns - 1
        print(f"{CLEAR}{text[:width]}", end="", file=self.stream, flush=True)

    def clear(self) -> None:
        """Clears the progress line."""
        if self._rewrites:
            print(CLEAR, end="", file=self.stream, flush=True)

    @property
    def _rewrites(self) -> bool:
        return self.stream.isatty()
