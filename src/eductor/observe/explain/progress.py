"""Shows the progress of a compile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TextIO

from eductor.pipeline.instruments import Instrument, Numbering, PassRun, StageRun
from eductor.progress import Line


@dataclass
class Progress(Instrument):
    """A progress line that is rewritten in place on a terminal; elsewhere one line per stage."""

    stream: TextIO
    _numbering: Numbering = field(default_factory=Numbering)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._line = Line(self.stream)

    def before_stage(self, run: StageRun) -> None:
        self._open.append(run.title(self._numbering.number(run.graph, run.module)))
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
        if self._rewrites:
            self._line.show(text)
        else:
            print(text, file=self.stream, flush=True)

    def clear(self) -> None:
        """Clears the progress line."""
        if self._rewrites:
            self._line.clear()

    @property
    def _rewrites(self) -> bool:
        return self.stream.isatty()
