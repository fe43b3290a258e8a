"""Benchmarks instruments, in percent of the compile time: none, timing and statistics, full recording, verification.

python bench/observing.py [--json] [--layers 12] [--repeats 3]

A training step of GPT-2 is compiled repeatedly, with each set of instruments in turn. Differences of whole compiles drown
in noise, so a wrapper measures the time inside of the instruments; `none` is an empty instrument, which bounds the cost of
none from above. The engine is `aten`, which takes no time: with `inductor` a compile takes ten times as long, and
instruments as long as here. The exit code is 1 if a limit is exceeded. It needs transformers.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo

import eductor
from autograd import training_step
from eductor.pipeline import Instrument, Recorder, Timer
from eductor.verification.verifier import Verifier

LIMITS = {"none": 1.0, "timing and statistics": 3.0, "full recording": 15.0}
"""Percent of the compile time."""


class Stopwatch(Instrument):
    """Forwards the pipeline's notifications to instruments, and measures the time inside of them."""

    def __init__(self, *observers: Instrument) -> None:
        self.observers = observers
        self.seconds = 0.0
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        if name.split("_")[0] not in ("before", "after", "failed", "skipped", "most"):
            return super().__getattribute__(name)
        hooks = [getattr(observer, name) for observer in self.observers]

        def call(*args: Any) -> Any:
            started = time.perf_counter()
            results = [hook(*args) for hook in hooks]
            self.seconds += time.perf_counter() - started
            self.calls += 1
            return results[0]

        return call


WAYS: dict[str, Callable[[], Stopwatch]] = {
    "none": lambda: Stopwatch(Instrument()),
    "timing and statistics": lambda: Stopwatch(Timer(), Recorder()),
    "full recording": lambda: Stopwatch(Timer(), Recorder(keep_graphs=True)),
    "verification": lambda: Stopwatch(Verifier()),
}


@dataclass
class Measured:
    """Seconds of whole compiles, and inside of the instruments, one of each per repeat."""

    compiles: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)
    calls: int = 0

    @property
    def percent(self) -> float:
        """The cost in percent of a compile without it, in the best repeat."""
        return min(100 * i / (c - i) for c, i in zip(self.compiles, self.inside, strict=True))


def measure(layers: int, repeats: int) -> dict[str, Measured]:
    step, tokens = training_step(layers)
    found = {name: Measured() for name in WAYS}
    for repeat in range(repeats):
        for name, make in WAYS.items():
            torch._dynamo.reset()
            gc.collect()
            watch = make()
            compiled = eductor.compile(step, engine="aten", instruments=[watch])
            started = time.perf_counter()
            compiled(tokens).backward()
            found[name].compiles.append(time.perf_counter() - started)
            found[name].inside.append(watch.seconds)
            found[name].calls = watch.calls
            print(f"  {repeat + 1}/{repeats} {name}: {found[name].compiles[-1]:.2f} s", file=sys.stderr)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    found = measure(args.layers, args.repeats)
    rows = [
        {
            "instruments": name,
            "percent": m.percent,
            "limit": LIMITS.get(name),
            "calls": m.calls,
            "compile": min(m.compiles),
        }
        for name, m in found.items()
    ]
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            limit = f"at most {row['limit']} is allowed" if row["limit"] else "no limit"
            print(
                f"{row['instruments']:22} {row['percent']:7.3f} percent of a compile, {row['calls']} calls; compile "
                f"{row['compile']:.2f} s ({limit})"
            )
    return int(any(name in LIMITS and m.percent > LIMITS[name] for name, m in found.items()))


if __name__ == "__main__":
    sys.exit(main())
