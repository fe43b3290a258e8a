"""A line of text below the cursor of a terminal, where it is rewritten and erased.

The cursor stays where it is: a bar that the program rewrites, or a line that it has not finished, goes on as if nothing had
been shown.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import ClassVar, TextIO
from weakref import WeakSet

_FREE = "\x1b[K"  # to the right of the cursor: the last text, where the program printed lines since
_ROOM = "\x1bD\x1b[A"  # one row down, which scrolls if there is none, and up again
BELOW = f"{_FREE}{_ROOM}\x1b7\x1b[B\r\x1b[2K"  # saves the cursor, and empties the row below
BACK = "\x1b8"
CLEAR = BELOW + BACK


class Line:
    """A line on the terminal that a stream writes to."""

    on_screen: ClassVar[WeakSet[Line]] = WeakSet()
    """The lines that are shown now. All take the same row, so that there should be one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, text: str) -> None:
        """Writes the text in place of the last one, as much of it as fits."""
        Line.on_screen.add(self)
        self._write(text[: self._width() - 1])

    def clear(self) -> None:
        """Erases the line; call it before something else is printed."""
        Line.on_screen.discard(self)
        self._write("")

    def _write(self, text: str) -> None:
        print(f"{BELOW}{text}{BACK}", end="", file=self._stream, flush=True)

    def _width(self) -> int:
        with suppress(OSError):
            if columns := os.get_terminal_size(self._stream.fileno()).columns:
                return columns
        return shutil.get_terminal_size().columns
