"""Benchmarks candidates on a device side by side, and caches the times on disk for later compiles."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from eductor.errors import warn

_WARM_UP, _ROUNDS, _CALLS = 3, 11, 5


def seconds(candidates: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """The median time of each candidate. They take turns, so that noise affects all of them alike."""
    for _ in range(_WARM_UP):
        for run in candidates:
            run()
    rounds = [[_time(run, device) for run in candidates] for _ in range(_ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def kept(
    key: Mapping[str, Any], count: int, measure: Callable[[], list[float]], folder: Path | None = None
) -> list[float]:
    """The `count` times cached under a key, measured and stored if missing. The key names all that they depend on."""
    text = json.dumps(key, sort_keys=True)
    path = (folder or default_folder()) / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    times = _read(path, text, count)
    if times is None:
        times = measure()
        _write(path, text, times)
    return times


def default_folder() -> Path:
    """The folder of cached times."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "eductor" / "measured"


def _time(run: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(_CALLS):
            run()
        return (time.perf_counter() - start) / _CALLS
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        begin.record()
        for _ in range(_CALLS):
            run()
        end.record()
        torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / _CALLS


def _read(path: Path, key: str, count: int) -> list[float] | None:
    """The cached times of a key; None if missing or unusable."""
    try:
        found = json.loads(path.read_text())
        times = [float(seconds) for seconds in found["seconds"]]
        if found["key"] == key and len(times) == count and all(t > 0 for t in times):
            return times
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        pass
    warn(f"{path} is damaged, so its times are measured again.")
    return None


def _write(path: Path, key: str, times: list[float]) -> None:
    """Writes a file atomically, as other processes may write it at the same time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump({"key": key, "seconds": times}, file)
        os.replace(file.name, path)
    except OSError as error:
        warn(f"measured times cannot be stored in {path.parent}: {error}.")
