"""Cache entries as files: written atomically, checked when read, the least recently used removed above a size limit.

A put looks at no other entry. It adds its size to a count, and when that reaches a part of the limit, the entries are looked at
and the count starts again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eductor.errors import BadOption, warn_uncounted

FORMAT = "eductor.cache/2"
FOLDER, SIZE = "EDUCTOR_CACHE_DIR", "EDUCTOR_CACHE_MIB"
"""Environment variables: the folder of entries, and the limit of their size in MiB; 0 disables the cache."""
DEFAULT_MIB = 512
_SUFFIX, _UNFINISHED, _COUNT = ".entry", ".unfinished-", "written"
_PART = 16
"""Entries are removed down to 15/16 of the limit, and looked at again when 1/16 of it has been written."""
_GIVEN_UP = 3600.0
"""Seconds after which an unfinished file belongs to a dead process."""


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of entries, limited in bytes. Processes may use it concurrently; one may exceed the limit by what others write
    while it removes entries."""

    folder: Path
    limit: int

    @staticmethod
    def default() -> Store:
        home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
        given = os.environ.get(SIZE) or str(DEFAULT_MIB)
        if not given.isdecimal():
            raise BadOption(f"{SIZE}={given}: it must be a number of MiB, or 0 to cache nothing.")
        return Store(Path(os.environ.get(FOLDER) or home / "eductor" / "graphs"), int(given) << 20)

    def get(self, key: str) -> Any | None:
        """The data under a key; what is damaged or belongs to another key is ignored, with a warning."""
        path = self._path(key)
        try:
            packed = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _ignored(path, f"it cannot be read: {error}")
            return None
        try:
            header, _, body = zlib.decompress(packed).partition(b"\n")
            stated = json.loads(header)
            if stated != {"format": FORMAT, "key": _digest(key.encode()), "contents": _digest(body)}:
                is_damaged = stated.get("contents") != _digest(body)
                _ignored(path, "it is damaged" if is_damaged else "it belongs to another key")
                return None
            found = json.loads(body)
        except (zlib.error, ValueError, AttributeError) as error:
            _ignored(path, f"it is damaged: {error}")
            return None
        with suppress(OSError):
            os.utime(path)  # marks it as recently used
        return found

    def has(self, key: str) -> bool:
        """Whether there is an entry under a key, which may turn out to be damaged."""
        return self._path(key).exists()

    def put(self, key: str, data: Any) -> None:
        """Stores data under a key; warns if the folder cannot be written."""
        body = json.dumps(data, separators=(",", ":")).encode()
        header = json.dumps({"format": FORMAT, "key": _digest(key.encode()), "contents": _digest(body)}).encode()
        packed = zlib.compress(header + b"\n" + body, level=1)
        if len(packed) > self.limit:
            return
        path = self._path(key)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_due = self._counted(len(packed))
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=_UNFINISHED, delete=False) as file:
                file.write(packed)
            os.replace(file.name, path)
        except OSError as error:
            _ignored(self.folder, f"it cannot be written: {error}")
            return
        if is_due:
            self._make_room()

    def give_up(self, key: str, reason: str) -> None:
        """Removes the entry of a key, with a warning that gives the reason."""
        path = self._path(key)
        _ignored(path, reason)
        with suppress(OSError):
            path.unlink(missing_ok=True)

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """The files with their sizes and times, least recently used first."""
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError):  # another process may have removed it
                found.append((path, path.stat()))
        return sorted(found, key=lambda entry: entry[1].st_mtime)

    def clear(self) -> int:
        """Removes all entries; returns how many."""
        entries = self.entries()
        for path, _ in entries:
            path.unlink(missing_ok=True)
        return len(entries)

    def _counted(self, size: int) -> bool:
        """Adds a size to what was written since room was made; returns whether it is time to make room.

        The count is the length of a file in KiB: processes append to it without a lock, and one that dies cannot damage it.
        """
        try:
            file = os.open(self.folder / _COUNT, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            return True
        try:
            os.write(file, b"." * (1 + size // 1024))
            return os.fstat(file).st_size << 10 > self.limit // _PART
        finally:
            os.close(file)

    def _make_room(self) -> None:
        """Removes what dead processes left, and entries down to their part of the limit; starts the count again."""
        for path in self.folder.glob(f"{_UNFINISHED}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _GIVEN_UP:
                    path.unlink()
        entries = self.entries()
        total = sum(stat.st_size for _, stat in entries)
        for path, stat in entries:
            if total <= self.limit - self.limit // _PART:
                break
            with suppress(OSError):
                path.unlink(missing_ok=True)
            total -= stat.st_size
        with suppress(OSError):
            (self.folder / _COUNT).write_bytes(b"")

    def _path(self, key: str) -> Path:
        return self.folder / f"{_digest(key.encode())[:32]}{_SUFFIX}"


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _ignored(path: Path, reason: str) -> None:
    warn_uncounted(f"the cache of compiled graphs ignores {path}: {reason}.")
