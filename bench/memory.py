"""Benchmarks a training step under memory budgets against eager and Inductor: its time, and its memory.

python bench/memory.py [--json] [--device cuda|cpu] [--rounds 15] [--only decoder,gpt2,ranking,resnet] [--budgets 0.8,0.5,0.2]

All take turns in one process on copies of one model; the least time of a step counts. `held` is the memory between forward
and backward: on a GPU the allocated memory beyond that before the step, without the result, and `peak` its maximum in a
step; on a CPU the storages that autograd saves, without inputs and parameters. Results and gradients are compared with
eager's. The exit code is 1 if a result is wrong, or if Eductor without a budget holds more than eager. It needs
transformers.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import eductor
from eductor.measure.steady import held_for_the_backward
from eductor.observe.table import as_text
from kernels import gpt2, resnet, synchronize
from pre_grad import Decoder, Logits, Ranking

Make = Callable[[str], tuple[nn.Module, torch.Tensor]]


def decoder(device: str) -> tuple[nn.Module, torch.Tensor]:
    large = device == "cuda"
    width, heads, hidden, layers = (2048, 16, 5632, 12) if large else (128, 4, 384, 4)
    model = nn.Sequential(*(Decoder(width, heads, hidden) for _ in range(layers)))
    x = torch.randn((8, 1024, width) if large else (4, 64, width), device=device)
    dtype = torch.bfloat16 if large else torch.float32
    return model.to(device, dtype), x.to(dtype)


def language_model(device: str) -> tuple[nn.Module, torch.Tensor]:
    model = Logits(gpt2(device, 12 if device == "cuda" else 4)[0])
    ids = torch.randint(0, 500, (16, 512) if device == "cuda" else (2, 64), device=device)
    return (model.to(device, torch.bfloat16) if device == "cuda" else model), ids


def ranking(device: str) -> tuple[nn.Module, torch.Tensor]:
    large = device == "cuda"
    model = Ranking(64, 64) if large else Ranking(16, 16)
    features = 64 if large else 16
    return model.to(device), torch.randint(0, 1000, (4096 if large else 128, features), device=device)


def images(device: str) -> tuple[nn.Module, torch.Tensor]:
    large = device == "cuda"
    model = Logits(resnet(device, 2)[0])
    x = torch.randn((32, 3, 224, 224) if large else (2, 3, 64, 64), device=device)
    return model.to(device), x


MODELS: dict[str, Make] = {"decoder": decoder, "gpt2": language_model, "ranking": ranking, "resnet": images}


@dataclass
class Way:
    """One backend with its own copy of the model, and its measurements."""

    model: nn.Module
    fn: Callable[..., Any]
    seconds: float = math.inf
    held: int = 0
    peak: int | None = None
    results: list[torch.Tensor] = field(default_factory=list)

    def step(self, x: torch.Tensor, gradient: torch.Tensor) -> None:
        synchronize(x.device.type)
        started = time.perf_counter()
        self.fn(x).backward(gradient)
        synchronize(x.device.type)
        self.seconds = min(self.seconds, time.perf_counter() - started)

    def observe(self, x: torch.Tensor, gradient: torch.Tensor) -> None:
        """Runs one step, measures its memory and keeps its results."""
        self.model.zero_grad(set_to_none=True)
        if x.is_cuda:
            synchronize(x.device.type)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            out = self.fn(x)
            self.held = torch.cuda.memory_allocated() - before - out.numel() * out.itemsize
            out.backward(gradient)
            self.peak = torch.cuda.max_memory_allocated() - before
        else:
            self.held, out = held_for_the_backward(
                lambda: self.fn(x), [x, *self.model.parameters(), *self.model.buffers()]
            )
            out.backward(gradient)
        self.results = [out.detach(), *(p.grad for p in self.model.parameters() if p.grad is not None)]
        self.model.zero_grad(set_to_none=True)


def ways(model: nn.Module, budgets: list[float]) -> dict[str, Way]:
    compilers: dict[str, Callable[[Any], Any]] = {
        "eager": lambda m: m,
        "inductor": lambda m: torch.compile(m),
        "eductor": lambda m: eductor.compile(m, engine="inductor"),
        "eductor, all saved": lambda m: eductor.compile(m, engine="inductor", recompute=False),
    }
    for budget in budgets:
        compilers[f"eductor, {budget}"] = lambda m, b=budget: eductor.compile(m, engine="inductor", memory_budget=b)
    models = {name: copy.deepcopy(model) for name in compilers}
    return {name: Way(models[name], compile(models[name])) for name, compile in compilers.items()}


def is_close(way: Way, eager: Way) -> bool:
    """Whether results and gradients equal eager's within half precision."""
    low = eager.results[-1].dtype != torch.float32
    for got, expected in zip(way.results, eager.results, strict=True):
        size = expected.float().norm().clamp(min=1e-6)
        if not (got.float() - expected.float()).norm() <= (0.05 if low else 1e-3) * size:
            return False
    return True


def measure(make: Make, device: str, rounds: int, budgets: list[float]) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = make(device)
    with torch.no_grad():
        gradient = torch.randn_like(model.train()(x))
    found = ways(model, budgets)
    for way in found.values():
        way.step(x, gradient)
        way.observe(x, gradient)
        way.seconds = math.inf
    for _ in range(rounds):
        for way in found.values():
            way.step(x, gradient)
            way.model.zero_grad(set_to_none=True)
    eager = found["eager"]
    rows = {
        name: {"ms": 1e3 * way.seconds, "held": way.held, "peak": way.peak, "right": is_close(way, eager)}
        for name, way in found.items()
    }
    return {"ways": rows, "ok": all(r["right"] for r in rows.values()) and found["eductor"].held <= eager.held}


def as_lines(name: str, result: dict[str, Any]) -> str:
    rows = []
    for way, row in result["ways"].items():
        peak = "" if row["peak"] is None else f"{row['peak'] / 2**20:.1f}"
        rows.append((way, f"{row['ms']:.2f}", f"{row['held'] / 2**20:.2f}", peak, "" if row["right"] else "WRONG"))
    return f"{name}\n{as_text(('way', 'ms', 'held, MiB', 'peak, MiB', ''), rows)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(MODELS), help="models, with commas")
    parser.add_argument("--budgets", default="0.8,0.5,0.2", help="budgets, with commas")
    given = parser.parse_args()
    results = {}
    for name in given.only.split(","):
        budgets = [float(b) for b in given.budgets.split(",") if b]
        results[name] = measure(MODELS[name], given.device, given.rounds, budgets)
        if not given.json:
            print(as_lines(name, results[name]), end="\n\n", flush=True)
    if given.json:
        print(json.dumps(results))
    return int(not all(result["ok"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
