"""Benchmarks all post-grad passes against torch's, on both graphs of a GPT-2 training step.

python bench/post_grad.py [--json] [--layers 12] [--repeats 7]

The forward and the backward graph come from our partitioner. Both get copies of them, made outside of the timing, and
take turns in one process; the least process time counts. The first graphs of a process, with everything that is loaded
or traced on first use, are reported separately. The exit code is 1 if ours take more than a third of torch's time. It
needs transformers.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

import eductor
from eductor.compat import lazy_module
from eductor.engines import ATEN, INDUCTOR
from eductor.graph.snapshot import copy_of
from eductor.graph.values.meta import fake_mode_of
from eductor.observe.table import as_text
from eductor.options import Options
from eductor.pipeline.base import Context
from eductor.pipeline.instruments import Instrument
from eductor.pipeline.pipeline import Pipeline
from joint import Passes
from patterns import replaced, seconds, training_step

LIMIT = 1 / 3
"""The allowed ratio of our time to torch's."""
ENGINE = replace(INDUCTOR, compile=ATEN.compile)
"""Graphs as Inductor takes them; they are not compiled to kernels."""


def fresh(module: GraphModule) -> GraphModule:
    """A copy like the graphs of torch's and our partitioner, whose code is generated on the first call."""
    return lazy_module(module, copy_of(module.graph))


def both_graphs(layers: int) -> dict[str, GraphModule]:
    """The forward and the backward graph of a training step, as the post-grad stage gets them."""
    found: dict[str, GraphModule] = {}

    def kept(flow: Any, parts: Any) -> None:
        found.update(forward=fresh(parts.forward), backward=fresh(parts.backward))
        original(flow, parts)

    original = eductor.compiler.post_grad
    step, tokens = training_step(layers)
    with replaced(eductor.compiler, "post_grad", kept):
        torch.compile(step, backend="eductor", options={"engine": ENGINE}, fullgraph=True)(tokens)
    return found


def stock(module: GraphModule) -> None:
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.virtualized import V

    with V.set_fake_mode(fake_mode_of(module.graph)):
        post_grad_passes(module, is_inference=False)


def ours(module: GraphModule, instruments: Sequence[Instrument] = ()) -> None:
    options = Options(engine=ENGINE)
    context = Context("post_grad", options, is_inference=False, fuses=ENGINE.fuses)
    Pipeline.of(options).run("post_grad", module, context, list(instruments))


def measure(layers: int, repeats: int) -> dict[str, Any]:
    graphs = both_graphs(layers)
    ways: dict[str, Callable[[GraphModule], None]] = {"torch": stock, "eductor": ours}
    found: dict[str, dict[str, list[float]]] = {role: {name: [] for name in ways} for role in graphs}
    for repeat in range(repeats + 1):
        for role, module in graphs.items():
            for name, run in ways.items():
                copy = fresh(module)
                gc.collect()
                found[role][name].append(seconds(lambda run=run, copy=copy: run(copy)))
        print(f"  round {repeat} of {repeats}", file=sys.stderr)
    first = {name: sum(found[role][name].pop(0) for role in graphs) for name in ways}
    least = {role: {name: min(times) for name, times in of.items()} for role, of in found.items()}
    total = {name: sum(least[role][name] for role in graphs) for name in ways}
    ratio = total["eductor"] / total["torch"]
    return {
        "nodes": {role: len(module.graph.nodes) for role, module in graphs.items()},
        "seconds": least,
        "total": total,
        "first": first,
        "passes": {role: _passes(module) for role, module in graphs.items()},
        "ratio": ratio,
        "ratio of the first graphs": first["eductor"] / first["torch"],
        "limit": LIMIT,
        "ok": ratio <= LIMIT,
    }


def _passes(module: GraphModule) -> dict[str, tuple[int, float]]:
    """Matches and seconds of each pass."""
    passes = Passes()
    ours(fresh(module), [passes])
    return {name: (passes.matches[name], times[0]) for name, times in passes.seconds.items()}


def as_lines(result: dict[str, Any]) -> str:
    def shown(times: dict[str, float]) -> list[str]:
        return [f"{1e3 * times[name]:.1f}" for name in ("torch", "eductor")]

    rows = [(role, count, *shown(result["seconds"][role])) for role, count in result["nodes"].items()]
    rows += [("both", "", *shown(result["total"])), ("first of the process", "", *shown(result["first"]))]
    passes = [
        (name, role, matches, f"{1e3 * spent:.1f}")
        for role, of in result["passes"].items()
        for name, (matches, spent) in sorted(of.items(), key=lambda item: -item[1][1])
    ]
    return "\n".join(
        (
            as_text(("graph", "nodes", "torch, ms", "eductor, ms"), rows),
            "",
            as_text(("pass", "graph", "matches", "ms"), passes),
            "",
            f"ours take {result['ratio']:.2f} of torch's time, {result['ratio of the first graphs']:.2f} on the first "
            f"graphs of the process; {LIMIT:.2f} is allowed.",
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    result = measure(given.layers, given.repeats)
    print(json.dumps(result) if given.json else as_lines(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
