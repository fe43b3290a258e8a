"""Benchmarks the overhead of calling a compiled function, besides its kernels: our dispatcher against torch's.

python bench/calls.py [--json] [--calls 2000] [--rounds 7]

A tiny function is compiled by each backend. Rounds of calls take turns in one process; the minimum of the rounds
counts. The exit code is 1 if a call through our dispatcher costs more than through torch's with the same engine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import eductor

PAIRS = {"aot_eager": "eductor, aten", "inductor": "eductor, inductor"}
SLACK = 1.05  # two rounds of the same function differ by so much


def backends() -> dict[str, Callable[[Any], Any]]:
    return {
        "dynamo alone": lambda fn: torch.compile(fn, backend="eager"),
        "aot_eager": lambda fn: torch.compile(fn, backend="aot_eager"),
        "eductor, aten": lambda fn: eductor.compile(fn, engine="aten"),
        "inductor": lambda fn: torch.compile(fn),
        "eductor, inductor": lambda fn: eductor.compile(fn, engine="inductor"),
    }


def tiny(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).sin()


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * w


def cases() -> dict[str, tuple[Any, Callable[[Any], None]]]:
    x, w = torch.randn(4), torch.randn(4)
    leaf = torch.randn(4, requires_grad=True)

    def backward(fn: Any) -> None:
        fn(leaf, w).sum().backward()

    return {
        "inference": (tiny, lambda fn: fn(x, w)),
        "training, forward": (tiny, lambda fn: fn(leaf, w)),
        "training, forward and backward": (tiny, backward),
        "an input is written": (written, lambda fn: fn(x, w)),
    }


def measure(calls: int, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds a call, by case and backend."""
    found = {}
    for case, (program, call) in cases().items():
        torch._dynamo.reset()
        compiled = {}
        for name, make in backends().items():
            compiled[name] = make(lambda x, w, program=program: program(x, w))
            for _ in range(20):
                call(compiled[name])
        best = dict.fromkeys(compiled, float("inf"))
        for _ in range(rounds):
            for name, fn in compiled.items():
                start = time.perf_counter()
                for _ in range(calls):
                    call(fn)
                best[name] = min(best[name], (time.perf_counter() - start) / calls * 1e6)
        found[case] = best
        print(f"  {case}: done", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.calls, args.rounds)
    if args.json:
        print(json.dumps(found))
    else:
        names = list(backends())
        print(f"{'microseconds a call':32}" + "".join(f"{name:>20}" for name in names))
        for case, times in found.items():
            print(f"{case:32}" + "".join(f"{times[name]:20.1f}" for name in names))
    return int(any(times[ours] > SLACK * times[stock] for times in found.values() for stock, ours in PAIRS.items()))


if __name__ == "__main__":
    sys.exit(main())
