"""A terminal for tests: a pseudo terminal, and what a person sees on it."""

from __future__ import annotations

import os
import pty
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PIECES = re.compile(r"\x1b(?:\[\d*)?.|.", re.DOTALL)
"""Escape sequences and characters."""


class Screen:
    """The rows of a terminal, after some output."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, [" " * columns for _ in range(rows)]
        self.row = self.column = 0
        self.saved = (0, 0)

    @property
    def lines(self) -> list[str]:
        """The rows as text, down to the last one that is not empty."""
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n").split("\n")

    def write(self, text: str) -> Screen:
        for piece in PIECES.findall(text):
            self._write(piece)
        return self

    def _write(self, piece: str) -> None:
        match piece:
            case "\r":
                self.column = 0
            case "\n":
                self.column = 0
                self._down()
            case "\x1bD":
                self._down()
            case "\x1b[A":
                self.row = max(self.row - 1, 0)
            case "\x1b[B":
                self.row = min(self.row + 1, len(self.rows) - 1)
            case "\x1b7":
                self.saved = (self.row, self.column)
            case "\x1b8":
                self.row, self.column = self.saved
            case "\x1b[K":
                self.rows[self.row] = self.rows[self.row][: self.column].ljust(self.columns)
            case "\x1b[2K":
                self.rows[self.row] = " " * self.columns
            case _:
                assert piece.isprintable(), f"a terminal of these tests does not know {piece!r}"
                row = self.rows[self.row]
                self.rows[self.row] = row[: self.column] + piece + row[self.column + 1 :]
                self.column += 1

    def _down(self) -> None:
        if self.row + 1 < len(self.rows):
            self.row += 1
        else:
            self.rows = [*self.rows[1:], " " * self.columns]


class Pty:
    """What is written to a pseudo terminal."""

    def __init__(self) -> None:
        self.main, self.end = pty.openpty()
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self.text += os.read(self.main, 4096).decode()
            except OSError:  # the other end is closed
                return

    def finish(self) -> str:
        """All of its text; it is closed from now on."""
        os.close(self.end)
        self._reader.join(10)
        os.close(self.main)
        return self.text


@contextmanager
def pseudo_terminal() -> Iterator[Pty]:
    """A terminal that is closed in the end, if it is not finished before."""
    made = Pty()
    try:
        yield made
    finally:
        if made._reader.is_alive():
            made.finish()
