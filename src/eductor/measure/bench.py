"""Measures models in all ways: the first step cold and warm, each in a process of its own; then all in turns in one."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

import eductor
from eductor.errors import BadScript, UnknownName
from eductor.measure.cases import makers
from eductor.measure.ways import EAGER, OURS, STOCK, ways

KINDS = ("inference", "training")


@dataclass(frozen=True)
class Bench:
    """What to measure."""

    source: str | None = None
    device: str = "cpu"
    only: Sequence[str] = ()
    kinds: Sequence[str] = KINDS
    rounds: int = 20
    compile_times: bool = True
    beside: Sequence[str] = ()
    """The ways to compare; all of them where none is named. Eager, Inductor and Eductor are always there."""
    say: Callable[[str], None] = lambda text: None

    def names(self) -> list[str]:
        known = list(makers(self.source))
        for name in self.only:
            if name not in known:
                raise UnknownName("model", name, known)
        return list(self.only) or known

    def run(self, keep: Callable[[Measured], None] = lambda measured: None) -> Measured:
        """Row by row; `keep` is called after each, with all that there are: what takes long may be cut off."""
        names, compared = self.names(), self.ways()
        rows = [(name, kind) for name in names for kind in self.kinds]
        measured = Measured(self.device)
        for i, (name, kind) in enumerate(rows):
            row = f"{name}, {kind}"
            try:
                measured.rows[row] = self._measure(name, kind, compared, f"{i + 1} of {len(rows)}: {row}")
            except BadScript as error:  # a crash of one way is no reason to lose all other figures
                measured.failures[row] = str(error)
            keep(measured)
        if not measured.rows:
            raise BadScript("\n".join(measured.failures.values()))
        return measured

    def ways(self) -> list[str]:
        known = list(ways(self.device))
        for way in self.beside:
            if way not in known:
                raise UnknownName(f"way on {self.device}", way, known)
        return [way for way in known if not self.beside or way in (EAGER, STOCK, OURS, *self.beside)]

    def _measure(self, name: str, kind: str, compared: Sequence[str], row: str) -> dict[str, dict[str, Any]]:
        job = {"source": self.source, "model": name, "device": self.device, "training": kind == "training"}
        with tempfile.TemporaryDirectory(prefix="eductor-bench-") as folder:
            caches, firsts = Path(folder), dict[str, dict[str, Any]]()
            for way in [w for w in compared if w != EAGER and self.compile_times]:
                own = caches / way.replace(", ", "-")
                self.say(f"{row}: first step with {way}, cold")
                firsts[way] = _child({**job, "way": way, "records": way == OURS}, own)
                self.say(f"{row}: first step with {way}, warm")
                firsts[way]["warm"] = _child({**job, "way": way, "records": False}, own)["seconds"]
                shutil.copytree(own, caches / "all", dirs_exist_ok=True)
            self.say(f"{row}: all ways in turns")
            found = _child({**job, "way": None, "ways": compared, "rounds": self.rounds}, caches / "all")
        for way, first in firsts.items():
            found[way] |= {"cold": first["seconds"], "warm": first["warm"]}
            if first["stages"]:
                found[way] |= {"stages": first["stages"], "nodes": first["nodes"]}
        return found


@dataclass(frozen=True)
class Measured:
    """The figures of each way, for each model and kind; and what they come to."""

    device: str
    rows: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Rows that could not be measured, and why."""

    def ratios(self, figure: str, way: str = OURS, beside: str = STOCK) -> dict[str, float]:
        """One way's figure as a part of another's, for each row that has both."""
        pairs = {name: (row[way].get(figure), row[beside].get(figure)) for name, row in self.rows.items()}
        return {name: a / b for name, (a, b) in pairs.items() if a is not None and b}

    def mean(self, figure: str, way: str = OURS, beside: str = STOCK) -> float | None:
        """The geometric mean of these ratios."""
        ratios = [r for r in self.ratios(figure, way, beside).values() if r > 0]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None

    def to_json(self) -> dict[str, Any]:
        """All figures as plain data: seconds, milliseconds, bytes."""
        return {
            "schema": "eductor.bench/1",
            "date": date.today().isoformat(),
            "eductor": eductor.__version__,
            "torch": str(torch.__version__),
            "device": self.device,
            "machine": torch.cuda.get_device_name()
            if self.device == "cuda"
            else f"CPU, {torch.get_num_threads()} threads",
            "rows": self.rows,
            "failures": self.failures,
            "means": {figure: self.mean(figure) for figure in ("milliseconds", "cold", "warm", "memory", "error")},
        }


def _child(job: dict[str, Any], cache: Path) -> dict[str, Any]:
    """A measurement in another process, which keeps its compiled kernels in a folder."""
    cache.mkdir(parents=True, exist_ok=True)
    named = {
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "TRITON_CACHE_DIR": cache / "triton",
        "EDUCTOR_CACHE_DIR": cache / "eductor",
    }
    result = cache / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "eductor.measure.worker", json.dumps(job), str(result)]
    ran = subprocess.run(
        command,
        env={**os.environ, **{k: str(v) for k, v in named.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode or not result.is_file():
        last = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
        way = "all ways" if job["way"] is None else job["way"]
        raise BadScript(f"{job['model']} with {way}, on {job['device']}, ended with code {ran.returncode}: {last}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found
