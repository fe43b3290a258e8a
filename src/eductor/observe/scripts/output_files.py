"""Output files of commands, checked before the work starts."""

from __future__ import annotations

import os
from pathlib import Path

from eductor.errors import BadOption


def check_can_write(file: str | None) -> None:
    """Raises BadOption if a file cannot be written."""
    if file is None:
        return
    path = Path(file)
    if path.is_dir():
        raise BadOption(f"{file!r} is a folder: give the name of a file in it.")
    if not path.absolute().parent.is_dir():
        raise BadOption(f"there is no folder {str(path.parent)!r} to write {path.name!r} in: create it first.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise BadOption(f"{file!r} is not writable: choose another place.")


def write(file: str, text: str) -> str:
    """Writes a file; returns its name and size as text."""
    Path(file).write_text(text, encoding="utf-8")
    return f"{file} ({len(text.encode()) / 1e6:.1f} MB)"
