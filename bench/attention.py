"""Benchmarks hand-written attention against eager and Inductor: time and peak memory, training and inference.

python bench/attention.py [--json] [--device cuda|cpu] [--rounds 15] [--lengths 512,2048] [--only mask,grouped,float32]

The forms are those that models write: a mask added to the scores, keys and values repeated for groups of heads, softmax
in float32 under a causal mask. All take turns in one process on the same inputs; medians count. Results and gradients
are compared with a run in float64: a compiler's error may slightly exceed eager's. The exit code is 1 if a result is
wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import eductor
from eductor.observe.table import as_text
from kernels import synchronize

Tensors = tuple[torch.Tensor, ...]
WORSE = 4.0
"""The allowed error of a result against float64, in multiples of eager's."""


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A mask that is added to the scores, as in BERT."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + mask
    return scores.softmax(-1) @ v


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Fewer heads of keys and values than of queries, as in Llama; softmax in float32, a causal mask that is added."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(q.shape) for x in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    causal = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = scores.masked_fill(~causal, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def upcast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Scores of scaled queries, and softmax in float32, as in T5 and many others."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q * q.shape[-1] ** -0.5, k)
    weights = torch.softmax(scores.float(), dim=-1).type_as(scores)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


FORMS: dict[str, Callable[..., torch.Tensor]] = {"mask": masked, "grouped": grouped, "float32": upcast}


@dataclass(frozen=True)
class Case:
    """One form at one length, trained or not."""

    form: str
    length: int
    training: bool

    @property
    def name(self) -> str:
        return f"{self.form}, {self.length}, {'training' if self.training else 'inference'}"

    def inputs(self, device: str) -> Tensors:
        large = device == "cuda"
        batch, heads, width = (4, 16, 64) if large else (1, 4, 32)
        dtype = torch.bfloat16 if large else torch.float32
        kept = heads // 4 if self.form == "grouped" else heads
        torch.manual_seed(0)
        made = [torch.randn(batch, h, self.length, width, device=device, dtype=dtype) for h in (heads, kept, kept)]
        hidden = torch.rand(batch, 1, 1, self.length, device=device) < 0.1
        mask = torch.zeros(hidden.shape, device=device, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)
        return (*(x.requires_grad_(self.training) for x in made), mask)

    def run(self, fn: Callable[..., torch.Tensor], given: Tensors) -> Tensors:
        """The result, and in training the gradients."""
        if not self.training:
            with torch.no_grad():
                return (fn(*given),)
        out = fn(*given)
        return (out.detach(), *torch.autograd.grad(out.float().square().mean(), given[:3]))


def compilers(form: Callable[..., torch.Tensor]) -> dict[str, Callable[..., torch.Tensor]]:
    return {"eager": form, "inductor": torch.compile(form), "eductor": eductor.compile(form)}


def errors(exact: Tensors, got: Tensors) -> float:
    """The largest error of results, relative to the exact ones."""
    return max(float((a - b.double()).norm() / a.norm().clamp(min=1e-30)) for a, b in zip(exact, got, strict=True))


def peak(run: Callable[[], Any], device: str) -> float:
    """The MiB that a call allocates at its peak, beyond those allocated before; NaN on a CPU."""
    if device != "cuda":
        return float("nan")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure_case(case: Case, device: str, rounds: int) -> dict[str, Any]:
    torch._dynamo.reset()
    form, given = FORMS[case.form], case.inputs(device)
    exact = case.run(form, tuple(x.detach().double().requires_grad_(x.requires_grad) for x in given))
    ways = compilers(form)
    wrong, memory = {}, {}
    for name, fn in ways.items():
        wrong[name] = errors(exact, case.run(fn, given))
        memory[name] = peak(lambda fn=fn: case.run(fn, given), device)  # type: ignore[misc]
    del exact
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, fn in ways.items():
            synchronize(device)
            started = time.perf_counter()
            case.run(fn, given)
            synchronize(device)
            times[name].append(time.perf_counter() - started)
    median = {name: 1e3 * statistics.median(spent) for name, spent in times.items()}
    return {
        "case": case.name,
        "ms": median,
        "MiB": memory,
        "error": wrong,
        "speed": median["inductor"] / median["eductor"],
        "memory": memory["eductor"] / memory["inductor"],
        "ok": wrong["eductor"] <= WORSE * wrong["eager"],
    }


def measure(device: str, rounds: int, lengths: Sequence[int], forms: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for case in (Case(form, length, training) for length in lengths for form in forms for training in (True, False)):
        found.append(measure_case(case, device, rounds))
        print(f"  {case.name}: {found[-1]['speed']:.2f} times Inductor's speed", file=sys.stderr)
    return found


def as_lines(found: Sequence[dict[str, Any]]) -> str:
    names = list(found[0]["ms"])
    rows = [
        (
            r["case"],
            *(f"{r['ms'][n]:.3f}" for n in names),
            f"{r['speed']:.2f}",
            *(f"{r['MiB'][n]:.0f}" for n in names),
            *(f"{r['error'][n]:.1e}" for n in names),
            "" if r["ok"] else "WRONG",
        )
        for r in found
    ]
    heads = [*(f"{n}, ms" for n in names), "speed", *(f"{n}, MiB" for n in names), *(f"{n}, error" for n in names), ""]
    return as_text(("attention", *heads), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--lengths", default="512,2048")
    parser.add_argument("--only", default=",".join(FORMS), help="forms, with commas between them")
    given = parser.parse_args()
    found = measure(given.device, given.rounds, [int(n) for n in given.lengths.split(",")], given.only.split(","))
    print(json.dumps(found) if given.json else as_lines(found))
    return 0 if all(r["ok"] for r in found) else 1


if __name__ == "__main__":
    sys.exit(main())
