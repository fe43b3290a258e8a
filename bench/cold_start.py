"""Benchmarks the first training step: seconds, generated kernels, compiled files; over models, and over the depth of a stack.

python bench/cold_start.py [--device cuda|cpu] [--only gpt2,llama,...] [--depths 6,24,48] [--ways ...] [--rounds 2]
                           [--budget SECONDS] [--json FILE] [--plot FILE.svg]

Each first step runs alone, in a process of its own, with empty caches; ways take turns, and the best of the rounds
counts. It ends with the seconds that it may take (`--budget`). Then the same process measures later steps and their peak
memory, which is how layers that share a body are compared with the flat graph (the way `eductor, flat`). It needs
transformers; the plot needs Matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.measure.models import encoder, ranking
from eductor.observe.table import as_text
from kernels import gpt2, resnet, synchronize

Loss = Callable[[], torch.Tensor]
WAYS: dict[str, Callable[[Loss], Loss]] = {
    "inductor": torch.compile,
    "eductor": eductor.compile,
    "eductor, flat": lambda loss: eductor.compile(loss, regions=False),
}


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


def stack(device: str, layers: int) -> tuple[nn.Module, Loss]:
    """A GPT of equal blocks, without its embedding."""
    width, shape = (512, (8, 256)) if device == "cuda" else (64, (2, 32))
    model = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
    x = torch.randn(*shape, width, device=device)
    x = x.bfloat16() if device == "cuda" else x
    return model, lambda: model(x).float().square().mean()


def llama(device: str) -> tuple[nn.Module, Loss]:
    from transformers import LlamaConfig, LlamaForCausalLM

    large = device == "cuda"
    config = LlamaConfig(
        num_hidden_layers=8 if large else 2,
        hidden_size=1024 if large else 64,
        intermediate_size=2816 if large else 176,
        num_attention_heads=16 if large else 4,
        num_key_value_heads=4 if large else 2,
        vocab_size=32000 if large else 500,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    ids = torch.randint(0, config.vocab_size, (4, 1024) if large else (2, 32), device=device)
    return model, lambda: F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def built_in(make: Callable[[str], Any]) -> Callable[[str], tuple[nn.Module, Loss]]:
    def made(device: str) -> tuple[nn.Module, Loss]:
        model, inputs = make(device)
        return model, lambda: model(*inputs).float().square().mean()

    return made


MODELS: dict[str, Callable[[str], tuple[nn.Module, Loss]]] = {
    "gpt2": lambda device: gpt2(device, 0 if device == "cuda" else 6),
    "llama": llama,
    "resnet": resnet,
    "ranking": built_in(ranking),
    "attention by hand": built_in(encoder),
}


def first_step(name: str, way: str, device: str, steps: int) -> dict[str, float]:
    """The figures of one model, in this process."""
    from torch._inductor import metrics

    warnings.simplefilter("error", eductor.EductorWarning)  # a fallback would be measured
    torch.manual_seed(0)
    made = stack(device, int(name.split()[0])) if name.endswith("layers") else MODELS[name](device)
    model = made[0].to(device, torch.bfloat16 if device == "cuda" and name != "ranking" else torch.float32).train()
    loss = WAYS[way](made[1])

    def step() -> float:
        started = time.perf_counter()
        loss().backward()
        synchronize(device)
        model.zero_grad(set_to_none=True)
        return time.perf_counter() - started

    if device == "cuda":
        torch.ones(8, 8, device=device).matmul(torch.ones(8, 8, device=device))  # the device and its libraries start
        synchronize(device)
    found = {"seconds": step(), "kernels": metrics.generated_kernel_count, "files": _compiled_files()}
    step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    found["step"] = statistics.median(step() for _ in range(steps)) * 1e3
    found["memory"] = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
    return found


def _compiled_files() -> int:
    """The files that compilers made in the empty cache: shared libraries of C++, binaries of Triton."""
    root = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    return sum(1 for kind in ("*.so", "*.cubin") for _ in root.rglob(kind))


def alone(name: str, way: str, device: str, steps: int) -> dict[str, float]:
    """The figures of one model, in a process with caches of its own."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/inductor/triton"}
        environment = {**os.environ, **caches, "EDUCTOR_CACHE_DIR": f"{folder}/eductor", "EDUCTOR_PROGRESS": "0"}
        command = [sys.executable, __file__, "--worker", name, way, "--device", device, "--steps", str(steps)]
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
        return found


def measure(args: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """For each model and way the figures of its best round, as far as the budget of seconds reaches."""
    names = [name for name in args.only.split(",") if name] + [f"{d} layers" for d in args.depths.split(",") if d]
    best: dict[str, dict[str, dict[str, float]]] = {name: {} for name in names}
    until = time.monotonic() + args.budget
    for _ in range(args.rounds):
        for name in names:
            for way in args.ways.split(";"):
                if time.monotonic() > until:
                    return best
                found = alone(name, way, args.device, args.steps)
                kept = best[name].get(way, found)
                best[name][way] = {key: min(found[key], kept[key]) for key in found}
                print(f"  {name}, {way}: {json.dumps(found)}", file=sys.stderr, flush=True)
                if args.json:
                    Path(args.json).write_text(json.dumps(best, indent=2))
    return best


FIGURES = {"seconds": "first step, s", "kernels": "kernels", "files": "files", "step": "step, ms", "memory": "MiB"}


def plot(best: dict[str, dict[str, dict[str, float]]], path: str) -> None:
    """Draws the seconds of the first step over the number of layers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    depths = [name for name in best if name.endswith("layers")]
    for way in WAYS:
        points = [(int(name.split()[0]), best[name][way]["seconds"]) for name in depths if way in best[name]]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=way)
    axes.set(xlabel="layers", ylabel="seconds of the first step, cold caches", ylim=0)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--depths", default="6,24,48")
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by semicolons")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="later steps, of which the median counts")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which nothing new begins")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.svg")
    parser.add_argument("--worker", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(first_step(*args.worker, args.device, args.steps)))
        return 0
    best = measure(args)
    rows = [
        (name, way, *(f"{figures[key]:.4g}" for key in FIGURES))
        for name, ways in best.items()
        for way, figures in ways.items()
    ]
    print(as_text(("model", "way", *FIGURES.values()), rows))
    if args.plot:
        plot(best, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
