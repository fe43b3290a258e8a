"""Tries random programs for a time: `PYTHONPATH=tests python -m fuzz --seconds 600 --engine aten --seed 1`."""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ["EDUCTOR_CACHE_MIB"] = "0"

import torch

from .judging import Verdict, in_eager, judge, judge_batch
from .program import Random
from .shrinking import shrunk
from .writing import written


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Compares random programs with eager.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long; default: %(default)s")
    parser.add_argument("--engine", choices=("aten", "inductor"), default="aten")
    parser.add_argument("--seed", type=int, default=None, help="where the programs begin; default: the time")
    parser.add_argument("--batch", type=int, default=12, help="programs per compile; default: %(default)s")
    parser.add_argument("--program", metavar="SEED/NUMBER", help="this one program alone, as it was printed")
    parser.add_argument("--no-shrink", action="store_true", help="print a finding as it was written")
    parser.add_argument("--log", type=Path, default=Path("build/fuzz.log"), help="where each run adds a line")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    if given.program:
        return show(given.program, given.engine, shrinks=not given.no_shrink)
    seed = int(time.time()) if given.seed is None else given.seed
    start, counts = time.monotonic(), Counter[str]()
    try:
        for group in groups(seed, given.batch, start + given.seconds, given.engine):
            for program, verdict in judged(group, given.engine, counts):
                report(program, verdict, given.engine, shrinks=not given.no_shrink)
    finally:
        log(given.log, f"seed={seed} engine={given.engine}", counts, time.monotonic() - start)
    return 1 if counts["differ"] else 0


def groups(seed: int, batch: int, end: float, engine: str = "aten") -> Iterator[list[tuple[Random, Any]]]:
    """Programs that run in eager, in groups with equal options, until the time is over."""
    number, waiting = 0, {}
    while time.monotonic() < end:
        program = for_engine(written(f"{seed}/{number}"), engine)
        number += 1
        expected = in_eager(program)
        if expected is None:
            continue
        group = waiting.setdefault(program.options, [])
        group.append((program, expected))
        if len(group) == batch:
            yield waiting.pop(program.options)


def for_engine(program: Random, engine: str) -> Random:
    """The program, with a profile that the engine has."""
    fast = tuple((name, "fast" if name == "profile" else value) for name, value in program.options)
    return program if engine == "aten" else replace(program, options=fast)


def judged(group: list, engine: str, counts: Counter) -> Iterator[tuple[Random, Verdict]]:
    """The programs of a group that differ; those of a batch are judged one by one if the batch differs."""
    counts["programs"] += len(group)
    if len(group) > 1:
        verdict = judge_batch([program for program, _ in group], engine)
        counts["compiles"] += 1
        if not verdict.differences:
            counts["fallbacks"] += bool(verdict.warned)
            return
        alone = 0
        for program, expected in group:
            one = judge(program, engine, expected)
            if one.differences:
                alone += 1
                counts["differ"] += 1
                yield program, one
        if not alone:
            counts["batches that differ"] += 1
            names = ", ".join(program.seed for program, _ in group)
            print(f"\nonly together, {names}:", *verdict.differences[:5], sep="\n  ", flush=True)
        return
    for program, expected in group:
        verdict = judge(program, engine, expected)
        counts["compiles"] += 1
        counts["fallbacks"] += bool(verdict.warned)
        if verdict.differences:
            counts["differ"] += 1
            yield program, verdict


def report(program: Random, verdict: Verdict, engine: str, *, shrinks: bool) -> None:
    """Prints a finding: the minimal program as a file, and how it differs."""
    first = kind_of(verdict.differences[0])

    def fails(other: Random) -> bool:
        found = judge(other, engine).differences
        return any(kind_of(d) == first for d in found)

    if shrinks:
        program = shrunk(program, fails)
        verdict = judge(program, engine)
    print(f"\n# {'-' * 90}\n{program.script()}", *(f"# {d}" for d in verdict.differences[:8]), sep="\n", flush=True)


def kind_of(difference: str) -> str:
    """What is different, without where and without numbers: a finding is shrunk as long as that stays."""
    return "values differ" if "values differ" in difference else difference.rpartition(": ")[2][:14]


def show(name: str, engine: str, *, shrinks: bool) -> int:
    program = for_engine(written(name), engine)
    verdict = judge(program, engine)
    if not verdict.differences:
        print(program.script(), "# no difference", *(f"# {w}" for w in verdict.warned), sep="\n")
        return 0
    report(program, verdict, engine, shrinks=shrinks)
    return 1


def log(path: Path, run: str, counts: Counter, seconds: float) -> None:
    """Adds a line to the log, and says how many programs were tried since it began."""
    path.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now().isoformat(timespec="seconds")
    what = " ".join(
        f"{name.replace(' ', '_')}={counts[name]}" for name in ("programs", "compiles", "differ", "fallbacks")
    )
    line = f"{now} {run} torch={torch.__version__} seconds={seconds:.0f} {what}"
    with path.open("a") as file:
        file.write(line + "\n")
    lines = path.read_text().splitlines()
    total = sum(int(part.partition("=")[2]) for x in lines for part in x.split() if part.startswith("programs="))
    print(f"{line}\n{total} programs since {lines[0].split()[0]}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
