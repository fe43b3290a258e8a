"""The whole sweep and its figures: `PYTHONPATH=tests python -m operators [--engine inductor] [--json FILE] [NAME ...]`.

Operators are swept in batches, each in a process of its own: a crash is a difference of the operator that crashed.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from .database import OPERATORS
from .sweep import Report, sweep

BATCH = 50


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m operators", description="Compiles torch's operators, beside eager."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators of the database; default: all of them")
    parser.add_argument("--profile", default="fast", choices=("fast", "exact"))
    parser.add_argument("--engine", default="aten", choices=("aten", "inductor"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was seen of each operator")
    parser.add_argument("--in-process", action="store_true", help="no batches: one line of JSON an operator")
    given = parser.parse_args()
    names = given.names or list(OPERATORS)
    if given.in_process:
        return run_here(names, given.profile, given.engine)
    start = time.monotonic()
    reports = []
    for report in in_batches(names, given.profile, given.engine):
        reports.append(report)
        print(f"\r{len(reports)} of {len(names)}  {report.name:60}", end="", file=sys.stderr, flush=True)
        for difference in report.differences:
            print(f"\n{report.name}: {difference}", flush=True)
    if given.json:
        given.json.write_text(json.dumps([report.as_json() for report in reports], indent=1))
    print("\n" + figures(reports, time.monotonic() - start))
    return None


def run_here(names: Sequence[str], profile: str, engine: str) -> None:
    logging.disable(logging.CRITICAL)  # torch logs each error of an operator on fake tensors
    for name in names:
        print(json.dumps({"begins": name}), flush=True)
        print(json.dumps(sweep(name, profile, engine).as_json()), flush=True)


def in_batches(names: Sequence[str], profile: str, engine: str) -> Iterator[Report]:
    """Reports in the order of the names; what comes after a crash goes to the next process."""
    left = list(names)
    while left:
        batch = left[:BATCH]
        ways = ["--profile", profile, "--engine", engine]
        command = [sys.executable, "-m", "operators", "--in-process", *ways, "--", *batch]
        current = None
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                told = json.loads(line)
                current = told.get("begins")
                if current is None:
                    left.remove(told["name"])
                    yield Report(**told)
            said = process.stderr.read()
        if process.returncode != 0:
            crashed = current or batch[0]
            left.remove(crashed)
            last = said.strip().splitlines()[-1:] or [""]
            yield Report(crashed, differences=[f"the process ended with {process.returncode}: {last[0]}"])


def figures(reports: Sequence[Report], seconds: float) -> str:
    fallbacks, uncaptured = Counter[str](), Counter[str]()
    for report in reports:
        fallbacks.update(report.fallbacks)
        uncaptured.update(report.uncaptured)
    lines = [
        f"operators           {len(reports)}",
        f"calls compared      {sum(r.forward for r in reports)} forward, {sum(r.backward for r in reports)} backward",
        f"calls refused alike {sum(r.refused for r in reports)}",
        f"graphs compiled     {sum(r.graphs for r in reports)}",
        f"operators that differ {sum(bool(r.differences) for r in reports)}",
        f"seconds             {seconds:.0f}",
    ]
    for title, counted in (("fell back, with a warning:", fallbacks), ("left to eager by Dynamo:", uncaptured)):
        lines += [title, *(f"  {count:4}  {what}" for what, count in counted.most_common())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
