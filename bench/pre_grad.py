"""Benchmarks the pre-grad stage: a ranking model and a decoder block against eager and Inductor, and the stage's cost.

python bench/pre_grad.py [--json] [--device cuda|cpu] [--rounds 15] [--only ranking,decoder] [--features 64] [--batch 1024]
python bench/pre_grad.py --stage-cost [--json] [--repeats 25]

All take turns in one process, on the same weights, without compile caches; the median of the rounds counts. On a GPU
both compilers are also measured with CUDA graphs, and the models are of real size. Results of the first call, gradients
included, are compared with a run in float64: a compiler's error may slightly exceed eager's. The size of a graph is the
number of its calls.

`--stage-cost` measures the stage alone, on captured graphs of several sizes. The exit code is 1 if it takes more than
5 ms per 100 nodes of a graph of 400 nodes or more, or if it grows faster than the graph; or, without it, if a result is
wrong. In smaller graphs the fixed cost of each batch of calls dominates: half a millisecond.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule

import eductor
from eductor.compat import lazy_module
from eductor.graph.capture import capture
from eductor.graph.snapshot import copy_of
from eductor.graph.values.value_comparison import unlike_rounding
from eductor.pipeline.instruments import StageRun
from kernels import gpt2, resnet, synchronize

LIMIT = 5.0
"""The allowed milliseconds of the stage per 100 captured nodes."""
SMALL = 400
"""Graphs of fewer nodes are measured, but not checked against the limit."""
STEEPEST = 1.5
"""The allowed ratio of the times per node in the largest and in the smallest graph."""
GRAPHS = ("ranking", "gpt2", "resnet")
WITH_CUDA_GRAPHS = "reduce-overhead"
ROUNDINGS = 32
"""The allowed error of a result, in roundings of its largest value: that of a sum of a thousand terms."""


# ------------------------------------------------------------------------------------------------------- the models


class Ranking(nn.Module):
    """Features, each with its own small tower and gate, then a network over all of them."""

    def __init__(self, features: int, width: int, rows: int = 1000) -> None:
        super().__init__()
        self.features, self.width = features, width
        self.table = nn.Embedding(features * rows, width)
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(features))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(features))
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(features))
        self.top = nn.Sequential(
            nn.Linear(features * width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.register_buffer("offsets", torch.arange(features) * rows, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        embedded = self.table(ids + self.offsets).flatten(1)
        pieces = torch.split(embedded, self.width, dim=1)
        towers = zip(pieces, self.linears, self.norms, strict=True)
        values = [norm(torch.tanh(linear(x))) for x, linear, norm in towers]
        half = len(values) // 2
        joined = torch.cat([torch.cat(values[:half], dim=1), torch.cat(values[half:], dim=1)], dim=1)
        again = zip(torch.split(joined, self.width, dim=1), self.gates, strict=True)
        gated = [torch.sigmoid(gate(x)) * x for x, gate in again]
        return self.top(torch.cat(gated, dim=1))


class Decoder(nn.Module):
    """A decoder block whose projections are separate: query, key, value, output; gate, up, down."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        kept = width // 4  # fewer heads of keys and values than of queries
        self.q, self.k, self.v = (nn.Linear(width, n, bias=False) for n in (width, kept, kept))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        q, k, v = (
            p(h).unflatten(-1, (-1, x.shape[-1] // self.heads)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@dataclass(frozen=True)
class Workload:
    """A model, its input, and whether it is trained."""

    name: str
    model: nn.Module
    x: torch.Tensor
    training: bool

    def run(self, fn: Callable[..., Any], model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """One step; the gradients of a training step stay in the model."""
        with torch.set_grad_enabled(self.training):
            out: torch.Tensor = fn(x)
        if self.training:
            model.zero_grad(set_to_none=True)
            out.float().square().mean().backward()
        return out


def workloads(device: str, only: Sequence[str], features: int, batch: int) -> Iterator[Workload]:
    large = device == "cuda"
    dtype = torch.bfloat16 if large else torch.float32
    features = features or (64 if large else 16)
    if "ranking" in only:
        rows = batch or (1024 if large else 128)
        for training in (True, False):
            torch.manual_seed(0)
            model = Ranking(features, 64 if large else 16).to(device)
            ids = torch.randint(0, 1000, (rows, features), device=device)
            yield Workload(f"ranking, {'training' if training else 'inference'}", model, ids, training)
    if "decoder" in only:
        width, length = (2048, 1024) if large else (128, 64)
        forms = {"training": (batch or 4, length), "large inference": (batch or 8, length), "decode": (1, 1)}
        for name, (rows, tokens) in forms.items():
            torch.manual_seed(0)
            model = Decoder(width, 16 if large else 4, 3 * width).to(device, dtype)
            x = torch.randn(rows, tokens, width, device=device, dtype=dtype)
            yield Workload(f"decoder, {name}", model, x, name == "training")


# ----------------------------------------------------------------------------------------------------- the measuring


class Sizes(eductor.Instrument):
    """The number of calls in a captured graph before and after the stage."""

    def __init__(self) -> None:
        self.before = self.after = 0

    def before_stage(self, run: StageRun) -> None:
        if run.name == "pre_grad":
            self.before += calls(run.module)

    def after_stage(self, run: StageRun) -> None:
        if run.name == "pre_grad":
            self.after += calls(run.module)


def calls(module: GraphModule) -> int:
    return sum(node.op.startswith("call") for node in module.graph.nodes)


def backends(device: str, sizes: Sizes) -> dict[str, Callable[[Any], Any]]:
    found: dict[str, Callable[[Any], Any]] = {
        "eager": lambda fn: fn,
        "inductor": torch.compile,
        "eductor": lambda fn: eductor.compile(fn, engine="inductor", instruments=[sizes]),
    }
    if device == "cuda":
        found["inductor, CUDA graphs"] = lambda fn: torch.compile(fn, mode=WITH_CUDA_GRAPHS)
        found["eductor, CUDA graphs"] = lambda fn: eductor.compile(fn, engine="inductor", mode=WITH_CUDA_GRAPHS)
    return found


def measure(work: Workload, device: str, rounds: int) -> dict[str, Any]:
    torch._dynamo.reset()
    sizes = Sizes()
    found: dict[str, Any] = {"milliseconds": {}, "compile seconds": {}, "wrong": {}}
    wide = copy.deepcopy(work.model).double()
    truth = results(work, wide, wide, as_double(work.x))
    expected: dict[str, torch.Tensor] = {}
    steps: dict[str, Callable[[], Any]] = {}
    for name, make in backends(device, sizes).items():
        fn = make(work.model)

        def step(fn: Any = fn) -> torch.Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            return work.run(fn, work.model, work.x)

        start = time.perf_counter()
        got = results(work, fn, work.model, work.x)
        synchronize(device)
        found["compile seconds"][name] = time.perf_counter() - start
        expected = expected or got
        unlike = {key: text for key in truth if (text := unlike_eager(expected[key], got[key], truth[key]))}
        found["wrong"] |= {f"{name}, {key}": text for key, text in unlike.items()}
        print(f"  {work.name}, {name}: first step {found['compile seconds'][name]:.1f} s", file=sys.stderr, flush=True)
        for _ in range(3):
            step()
        steps[name] = step
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds):
        for name, step in list(steps.items())[:: 1 if i % 2 else -1]:  # each of two follows the other equally often
            synchronize(device)
            start = time.perf_counter()
            step()
            synchronize(device)
            times[name].append((time.perf_counter() - start) * 1e3)
    found["milliseconds"] = {name: statistics.median(values) for name, values in times.items()}
    found["calls"] = {"before": sizes.before, "after": sizes.after}
    return found


def results(work: Workload, fn: Any, model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Copies of the output and the gradients of a step: the next run of a CUDA graph overwrites its results."""
    out = work.run(fn, model, x)
    gradients = {f"the gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    found = {"output": out.detach().clone(), **{name: g.clone() for name, g in gradients.items()}}
    model.zero_grad(set_to_none=True)
    return found


def unlike_eager(eager: torch.Tensor, got: torch.Tensor, truth: torch.Tensor) -> str:
    """How a result differs from eager's beyond the rounding of one sum, or slightly more than eager's own."""
    error = (got.double() - truth).abs().max()
    of_a_sum = ROUNDINGS * torch.finfo(got.dtype).eps * truth.abs().max()
    return "" if bool(error <= of_a_sum) else unlike_rounding(eager, got, truth)


def as_double(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


# -------------------------------------------------------------------------------------------------- the stage's cost


class Logits(nn.Module):
    """A transformers model that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).logits


def captured(sizes: Sequence[int], only: Sequence[str]) -> Iterator[tuple[str, GraphModule, torch.Tensor]]:
    """Captured graphs of growing size: towers of a ranking model, layers of GPT-2, blocks of a ResNet."""
    makers: dict[str, Callable[[int], tuple[nn.Module, torch.Tensor]]] = {
        "ranking": lambda size: (Ranking(8 * size, 8), torch.zeros(8, 8 * size, dtype=torch.int64)),
        "gpt2": lambda size: (Logits(gpt2("cpu", size)[0]), torch.zeros(1, 16, dtype=torch.int64)),
        "resnet": lambda size: (Logits(resnet("cpu", size)[0]), torch.randn(1, 3, 32, 32)),
    }
    for name in only:
        for size in sizes:
            model, x = makers[name](size)
            yield f"{name}, size {size}", capture(model.train(), [x]), x


def stage_cost(sizes: Sequence[int], repeats: int, only: Sequence[str] = GRAPHS) -> list[dict[str, Any]]:
    """Milliseconds of the stage per 100 captured nodes, by graph; the minimum of the repeats counts."""
    rows: list[dict[str, Any]] = []
    for name, module, x in captured(sizes, only):
        best, nodes, after = float("inf"), len(module.graph.nodes), 0
        for _ in range(repeats):
            fresh = lazy_module(module, copy_of(module.graph))  # like Dynamo's: code is generated on the first call
            gc.collect()
            start = time.process_time()
            eductor.pre_grad_passes(fresh, [x])
            best = min(best, (time.process_time() - start) * 1e3)
            after = len(fresh.graph.nodes)
        rows.append({"graph": name, "nodes": nodes, "after": after, "per 100 nodes": best / nodes * 100})
        print(f"  {name}: {rows[-1]['per 100 nodes']:.2f} ms per 100 nodes", file=sys.stderr, flush=True)
    return rows


def growth(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The ratio of the times per node in the largest and in the smallest graph of a kind."""
    kinds: dict[str, list[float]] = {}
    for row in rows:
        kinds.setdefault(row["graph"].partition(",")[0], []).append(row["per 100 nodes"])
    return {kind: costs[-1] / costs[0] for kind, costs in kinds.items()}


# ---------------------------------------------------------------------------------------------------------- the report


def table(found: dict[str, dict[str, Any]], device: str) -> str:
    lines = []
    for name, result in found.items():
        size = result["calls"]
        lines.append(f"{name}, on {device}; calls before the stage {size['before']}, after it {size['after']}:")
        stock = result["milliseconds"]["inductor"]
        for backend, milliseconds in result["milliseconds"].items():
            seconds = result["compile seconds"][backend]
            lines.append(
                f"  {backend:24} {milliseconds:9.3f} ms   {stock / milliseconds:6.2f} x inductor   first step {seconds:6.1f} s"
            )
        lines += [f"  WRONG: {what}: {text}" for what, text in result["wrong"].items()]
    return "\n".join(lines)


def cost_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [f"{'graph':28}{'nodes':>8}{'after':>8}{'ms per 100 nodes':>20}"]
    lines += [f"{r['graph']:28}{r['nodes']:8}{r['after']:8}{r['per 100 nodes']:20.2f}" for r in rows]
    lines += [
        f"{kind}: {times:.2f} times as long per node in the largest graph" for kind, times in growth(rows).items()
    ]
    allowed = f"At most {LIMIT} ms per 100 nodes, of {SMALL} nodes or more, and {STEEPEST} times as long are allowed."
    return "\n".join([*lines, allowed])


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="ranking,decoder")
    parser.add_argument("--features", type=int, default=0, help="of the ranking model; 0: 64 on a GPU, 16 on a CPU")
    parser.add_argument("--batch", type=int, default=0, help="rows of a batch; 0: what suits the device")
    parser.add_argument("--stage-cost", action="store_true")
    parser.add_argument("--sizes", default="2,8,32", help="sizes of the graphs that the stage's cost is measured on")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(given)
    if args.stage_cost:
        rows = stage_cost([int(s) for s in args.sizes.split(",")], args.repeats)
        print(json.dumps({"cost": rows, "growth": growth(rows)}) if args.json else cost_table(rows))
        slow = any(row["per 100 nodes"] > LIMIT for row in rows if row["nodes"] >= SMALL)
        return int(slow or any(times > STEEPEST for times in growth(rows).values()))
    torch._inductor.config.force_disable_caches = True
    chosen = args.only.split(",")
    found = {
        work.name: measure(work, args.device, args.rounds)
        for work in workloads(args.device, chosen, args.features, args.batch)
    }
    print(json.dumps(found) if args.json else table(found, args.device))
    return int(any(result["wrong"] for result in found.values()))


if __name__ == "__main__":
    sys.exit(main())
