"""Benchmarks ahead-of-time autograd against torch's, on the same captured graph: analysis, trace and partition.

python bench/autograd.py [--json] [--layers 12] [--repeats 5] [--decompositions none|inductor]

A training step of GPT-2 is captured once. Both dispatchers then take turns on it in one process: torch's metadata
collection, joint trace and min-cut partition, and our analysis, joint trace and split. The minimum of each counts, in
seconds of CPU time. The exit code is 1 if ours takes more than 0.6 of torch's time. It needs transformers.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo
import torch._functorch._aot_autograd.graph_compile as stock_compile
import torch._functorch.aot_autograd as stock
from torch._functorch.partitioners import min_cut_rematerialization_partition

from eductor.autograd import aot_dispatch_autograd_graph
from eductor.autograd.captured import Captured, Fakes
from eductor.partition import partition_fn

LIMIT = 0.6
Times = dict[str, float]


def training_step(layers: int) -> tuple[Callable[..., Any], torch.Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=64, n_head=4, vocab_size=512, n_positions=64, use_cache=False)
    model = GPT2LMHeadModel(config).train()

    def step(tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return step, torch.randint(0, 512, (2, 32))


def time_stock(module: Any, inputs: Any, table: Any) -> Times:
    """Seconds in torch's metadata collection, joint trace and partition."""
    times: Times = defaultdict(float)

    def timed(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return fn(*args, **kwargs)
            finally:
                times[name] += time.process_time() - start

        return call

    collect = stock.run_functionalized_fw_and_collect_metadata

    with (
        replaced(
            stock, "run_functionalized_fw_and_collect_metadata", lambda *a, **k: timed("analysis", collect(*a, **k))
        ),
        replaced(stock_compile, "aot_dispatch_autograd_graph", None, lambda fn: timed("trace", fn)),
    ):
        stock.aot_module_simplified(
            module,
            inputs,
            fw_compiler=lambda gm, _: gm.forward,
            bw_compiler=lambda gm, _: gm.forward,
            partition_fn=timed("partition", min_cut_rematerialization_partition),
            decompositions=table,
        )
    return times


@contextmanager
def replaced(owner: Any, name: str, value: Any, wrap: Callable[[Any], Any] | None = None) -> Any:
    before = getattr(owner, name)
    setattr(owner, name, wrap(before) if wrap is not None else value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def time_ours(module: Any, inputs: Any, table: Any) -> Times:
    """Seconds in our analysis and trace, and in our split."""
    start = time.process_time()
    captured = Captured(module)
    joint = aot_dispatch_autograd_graph(captured, Fakes.of([*captured.held, *inputs]), table)
    middle = time.process_time()
    partition_fn(joint)
    return {"analysis and trace": middle - start, "partition": time.process_time() - middle}


def measure(layers: int, repeats: int, decompositions: str) -> dict[str, Any]:
    step, tokens = training_step(layers)
    found: dict[str, list[Times]] = {"stock": [], "ours": []}
    table: dict[Any, Any] = {}
    if decompositions == "inductor":
        from torch._inductor.decomposition import select_decomp_table

        table = dict(select_decomp_table())

    def backend(module: Any, inputs: Any) -> Any:
        for repeat in range(repeats):
            for name, run in (("stock", time_stock), ("ours", time_ours)):
                gc.collect()
                found[name].append(run(module, inputs, table))
                print(f"  {repeat + 1}/{repeats} {name}: {sum(found[name][-1].values()):.2f} s", file=sys.stderr)
        return module.forward

    torch.compile(step, backend=backend, fullgraph=True)(tokens)
    best = {name: min(runs, key=lambda times: sum(times.values())) for name, runs in found.items()}
    ratio = sum(best["ours"].values()) / sum(best["stock"].values())
    return {"layers": layers, "decompositions": decompositions, "seconds": best, "ratio": ratio}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--decompositions", choices=("none", "inductor"), default="inductor")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.layers, args.repeats, args.decompositions)
    if args.json:
        print(json.dumps(result))
    else:
        for name, times in result["seconds"].items():
            parts = ", ".join(f"{part} {seconds:.3f}" for part, seconds in times.items())
            print(f"{name:6} {sum(times.values()):.3f} s ({parts})")
        print(f"ours / stock: {result['ratio']:.2f} (at most {LIMIT} is allowed)")
    return int(result["ratio"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
