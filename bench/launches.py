"""Benchmarks replayed launches: steps of each model, by default, always and never, beside Inductor with and without CUDA graphs.

python bench/launches.py [--only gpt2,resnet,...] [--kinds training,inference] [--ways ...] [--rounds 40] [--json FILE]

The ways take turns in one process, on the same weights; the median of the rounds counts. `reserved` is what the allocator
of a process that runs this way alone has taken at most. It needs a GPU and transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import eductor
from cold_start import MODELS
from eductor.observe.table import as_text

Step = Callable[[], Any]
WAYS: dict[str, Callable[[Any], Any]] = {
    "inductor": torch.compile,
    "inductor, reduce-overhead": lambda fn: torch.compile(fn, mode="reduce-overhead"),
    "eductor": eductor.compile,
    "eductor, never": lambda fn: eductor.compile(fn, launches="never"),
    "eductor, always": lambda fn: eductor.compile(fn, launches="always"),
}


def step_of(model: torch.nn.Module, fn: Any, kind: str) -> Step:
    """One step of a kind: forward and backward, or a forward whose result the caller reads."""

    def training() -> None:
        fn().backward()
        model.zero_grad(set_to_none=True)

    def inference() -> None:
        with torch.no_grad():
            fn()

    return training if kind == "training" else inference


def made(name: str, kind: str) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    model, loss = MODELS[name]("cuda")
    model = model.to("cuda", torch.float32 if name == "ranking" else torch.bfloat16)
    return model.train(kind == "training"), loss


def timed(step: Step) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def alone(name: str, kind: str, way: str, rounds: int) -> dict[str, Any]:
    """The memory of one way, in this process."""
    model, loss = made(name, kind)
    step = step_of(model, WAYS[way](loss), kind)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(rounds):
        step()
    return {"reserved": torch.cuda.max_memory_reserved() / 2**20}


def measure(name: str, kind: str, ways: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """For each way the median of its steps in milliseconds, and how many of them were slower than it by a tenth."""
    model, loss = made(name, kind)
    steps = {way: step_of(model, WAYS[way](loss), kind) for way in ways}
    first = {way: timed(step) for way, step in steps.items()}
    for _ in range(12):
        for step in steps.values():
            timed(step)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, step in steps.items():
            times[way].append(timed(step) * 1e3)
        torch._dynamo.utils.counters.clear()
    return {way: {"step": statistics.median(times[way]), "first": first[way]} for way in ways}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--kinds", default="training,inference")
    parser.add_argument("--ways", default=";".join(list(WAYS)[:4]), help="separated by semicolons")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--memory", action="store_true", help="also the memory of each way, in a process of its own")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--worker", nargs=3, metavar=("MODEL", "KIND", "WAY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(alone(*args.worker, args.rounds)))
        return 0
    found: dict[str, Any] = {}
    for name in args.only.split(","):
        for kind in args.kinds.split(","):
            torch._dynamo.reset()
            rows = measure(name, kind, args.ways.split(";"), args.rounds)
            for way, row in rows.items() if args.memory else ():
                command = [sys.executable, __file__, "--worker", name, kind, way, "--rounds", str(args.rounds)]
                row.update(
                    json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
                )
            found[f"{name}, {kind}"] = rows
            print(f"  {name}, {kind}: {json.dumps(rows)}", file=sys.stderr, flush=True)
            if args.json:
                Path(args.json).write_text(json.dumps(found, indent=2))
    lines = [
        (name, way, *(f"{row[key]:.4g}" if key in row else "" for key in ("step", "first", "reserved")))
        for name, rows in found.items()
        for way, row in rows.items()
    ]
    print(as_text(("model", "way", "step, ms", "first step, s", "reserved, MiB"), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
