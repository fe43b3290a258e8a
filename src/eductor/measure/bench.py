"""Runs the bench: the first step, cold and warm, in a separate process each; then steady steps of all ways in one process."""

from __future__ import annotations

import compileall
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

from eductor.errors import BadScript, UnknownName
from eductor.measure.cases import EAGER, OURS, STOCK, makers, ways
from eductor.version import HOME, __version__

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
    """The ways to compare; all if empty. Eager, Inductor and Eductor are always included."""
    jobs: int = 1
    """How many first steps run in parallel."""
    say: Callable[[str], None] = lambda text: None

    def names(self) -> list[str]:
        known = list(makers(self.source))
        for name in self.only:
            if name not in known:
                raise UnknownName("model", name, known)
        return list(self.only) or known

    def run(self, keep: Callable[[Measured], None] = lambda measured: None) -> Measured:
        """Measures row by row; `keep` receives all figures so far after each row, as a long run may be interrupted."""
        pairs = [(name, kind) for name in self.names() for kind in self.kinds]
        rows = [BenchRow(name, kind, f"{i} of {len(pairs)}") for i, (name, kind) in enumerate(pairs, 1)]
        measured, compared = Measured(self.device), self.ways()
        # As installing does: no first step may pay for compiling the package's own sources to bytecode.
        compileall.compile_dir(HOME, quiet=2)
        for start in range(0, len(rows), self.jobs):
            some = rows[start : start + self.jobs]
            with tempfile.TemporaryDirectory(prefix="eductor-bench-") as folder:
                firsts = self._first_steps(some, compared, Path(folder))
                for row in some:
                    try:  # a crash of one way must not lose all other figures
                        measured.rows[row.name] = self._measure(row, compared, firsts, Path(folder))
                    except BadScript as error:
                        measured.failures[row.name] = str(error)
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

    def _first_steps(self, rows: Sequence[BenchRow], compared: Sequence[str], folder: Path) -> FirstSteps:
        """First steps of all ways, `jobs` at a time; rows alternate the order of the ways."""
        ways = [way for way in compared if way != EAGER and self.compile_times]
        tasks = [(row, way) for i, row in enumerate(rows) for way in ways[:: -1 if i % 2 else 1]]
        pool = ThreadPoolExecutor(self.jobs)
        try:
            firsts = {(row, way): pool.submit(self._first_step, row, way, folder) for row, way in tasks}
            wait(firsts.values())
            return firsts
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupted bench starts nothing more

    def _first_step(self, row: BenchRow, way: str, folder: Path) -> dict[str, Any]:
        own, job = row.caches(folder, way), {**self._job(row), "way": way}
        self.say(f"{row}: first step with {way}, cold")
        first = _child({**job, "records": way == OURS}, own)
        self.say(f"{row}: first step with {way}, warm")
        return first | {"warm": _child({**job, "records": False}, own)["seconds"]}

    def _measure(
        self, row: BenchRow, compared: Sequence[str], firsts: FirstSteps, folder: Path
    ) -> dict[str, dict[str, Any]]:
        own = {way: first.result() for (of, way), first in firsts.items() if of == row}
        for way in own:
            shutil.copytree(row.caches(folder, way), row.caches(folder, "all"), dirs_exist_ok=True)
        self.say(f"{row}: all ways in turns")
        job = {**self._job(row), "way": None, "ways": compared, "rounds": self.rounds}
        found = _child(job, row.caches(folder, "all"))
        for way, first in own.items():
            found[way] |= {"cold": first["seconds"], "warm": first["warm"]}
            if first["stages"]:
                found[way] |= {"stages": first["stages"], "nodes": first["nodes"]}
        return found

    def _job(self, row: BenchRow) -> dict[str, Any]:
        training = row.kind == "training"
        return {"source": self.source, "model": row.model, "device": self.device, "training": training}


@dataclass(frozen=True)
class BenchRow:
    """A model, for inference or training."""

    model: str
    kind: str
    place: str

    @property
    def name(self) -> str:
        return f"{self.model}, {self.kind}"

    def __str__(self) -> str:
        return f"{self.place}: {self.name}"

    def caches(self, folder: Path, way: str) -> Path:
        """The folder of caches that its first steps with a way fill."""
        return folder / f"{self.name}, {way}".replace(", ", "-")


FirstSteps = dict[tuple[BenchRow, str], Future[dict[str, Any]]]


@dataclass(frozen=True)
class Measured:
    """The figures of each way, for each model and kind, and their means."""

    device: str
    rows: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Rows that could not be measured, with the reason."""

    def ratios(self, figure: str, way: str = OURS, beside: str = STOCK) -> dict[str, float]:
        """The ratio of one way's figure to another's, for each row that has both."""
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
            "eductor": __version__,
            "torch": str(torch.__version__),
            "device": self.device,
            "machine": torch.cuda.get_device_name() if self.device == "cuda" else _processor(),
            "rows": self.rows,
            "failures": self.failures,
            "means": {figure: self.mean(figure) for figure in ("milliseconds", "cold", "warm", "memory", "error")},
        }


def _processor() -> str:
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def _child(job: dict[str, Any], cache: Path) -> dict[str, Any]:
    """Runs a measurement in another process, with its caches in a folder."""
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
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        way = "all ways" if job["way"] is None else job["way"]
        raise BadScript(f"{job['model']} with {way}, on {job['device']}, ended with code {ran.returncode}: {last}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found
