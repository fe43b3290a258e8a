"""Benchmarks the pattern matcher: against torch's on one graph, loading of stored patterns, growth of matching.

python bench/patterns.py [--json] [--layers 12] [--repeats 7] [--sizes 1000,5000,10000,50000]

The graph is the joint one of a GPT-2 training step. On copies of it, made outside of the timing, take turns: our rules,
one for each spelling in `attention_patterns.py`; the pattern part of torch's joint passes; and torch's attention patterns
alone, against as many of ours. Torch's attention patterns find nothing in this graph, ours find every attention: since
tracing replacements is not matching, a check declines each match; the time with all replacements is reported, too.
Loading is measured in new processes, since it happens once in each. Medians count. The exit code is 1 if a limit is
exceeded. It needs transformers.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from attention_patterns import FILE, Spelling, rules, spellings, stored
from eductor.graph.rewriter import Rewriter
from eductor.graph.snapshot import copy_of
from eductor.graph.values.meta import fake_mode_of
from eductor.graph.view import GraphView
from eductor.observe.table import as_text
from eductor.patterns.match.match import Match
from eductor.patterns.rules import Rules
from eductor.patterns.trace.store import Store

SIZES = (1_000, 5_000, 10_000, 50_000)
REPEATS = 7
LIMITS = {"ours / torch's": 1 / 5, "loading": 20.0, "growth": 1.5}
"""A ratio of times; milliseconds; the ratio of the times per node in the largest and in the smallest graph."""
Times = dict[str, list[float]]


# ------------------------------------------------------------------------------------------------ beside torch's own


def training_step(layers: int) -> tuple[Callable[[torch.Tensor], Any], torch.Tensor]:
    """The loss of a small GPT-2 in training, and its tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": layers, "n_embd": 64, "n_head": 4, "vocab_size": 512, "n_positions": 64}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **tokens, use_cache=False, attn_implementation="eager")).train()
    model.loss_type = "ForCausalLM"
    return lambda tokens: model(tokens, labels=tokens).loss, torch.randint(0, 512, (2, 32))


def joint_graph(layers: int) -> GraphModule:
    """Forward and backward of a GPT-2 with its loss, in the decompositions of Inductor."""
    from torch._inductor.decomposition import select_decomp_table

    from eductor.autograd import aot_dispatch_autograd_graph
    from eductor.autograd.captured import Captured, Fakes

    step, tokens = training_step(layers)
    found: list[GraphModule] = []

    def backend(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        captured = Captured(module)
        fakes = Fakes.of([*captured.held, *inputs])
        found.append(aot_dispatch_autograd_graph(captured, fakes, dict(select_decomp_table())).module)
        return module.forward

    torch.compile(step, backend=backend, fullgraph=True)(tokens)
    return found[0]


class Stock:
    """Torch's joint passes, and their attention patterns in a pass of their own."""

    def __init__(self) -> None:
        from torch._inductor.fx_passes import fuse_attention, joint_graph, pad_mm
        from torch._inductor.pattern_matcher import PatternMatcherPass
        from torch._inductor.virtualized import V

        started = time.process_time()
        pad_mm._pad_mm_init(None)
        others = {id(entry) for entries in self._entries(joint_graph) for entry in entries}
        fuse_attention._sfdp_init(None)
        attention = PatternMatcherPass("attention")
        for key, entries in joint_graph.patterns.patterns.items():
            attention.patterns[key] = [entry for entry in entries if id(entry) not in others]
        joint_graph.lazy_init(None)
        self.seconds_to_load = time.process_time() - started
        self.attention = attention
        self.joint_graph_passes = joint_graph.joint_graph_passes
        self.matcher = PatternMatcherPass
        self.set_fake_mode = V.set_fake_mode
        self.count = sum(map(len, self._entries(joint_graph)))
        self.attention_count = sum(map(len, attention.patterns.values()))

    def _entries(self, passes: Any) -> list[list[Any]]:
        return [entries for p in (passes.early_patterns, *passes.pass_patterns) for entries in p.patterns.values()]

    def time_joint(self, module: GraphModule) -> float:
        """Seconds in the pattern passes of `joint_graph_passes`."""
        spent = 0.0
        apply = self.matcher.apply

        def timed(*args: Any) -> int:
            nonlocal spent
            started = time.process_time()
            try:
                return apply(*args)
            finally:
                spent += time.process_time() - started

        with replaced(self.matcher, "apply", timed), self.set_fake_mode(fake_mode_of(module.graph)):
            self.joint_graph_passes(module)
        return spent

    def time_attention(self, module: GraphModule) -> float:
        return seconds(lambda: self.attention.apply(module.graph))


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Any:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def seconds(fn: Callable[[], Any]) -> float:
    started = time.process_time()
    fn()
    return time.process_time() - started


def fresh(module: GraphModule) -> GraphModule:
    return GraphModule(module, copy_of(module.graph))


def apply(found: Rules, module: GraphModule) -> Rewriter:
    """Runs a pass of these rules on a graph, including the index of the graph."""
    view = GraphView(module)
    rewrite = Rewriter(view, "joint/attention")
    found.apply(view, rewrite)
    return rewrite


def decline(match: Match) -> str:
    """A check that declines every match."""
    return "it is only matched"


def beside_stock(layers: int, repeats: int, wanted: list[Spelling], home: Path) -> dict[str, Any]:
    module = joint_graph(layers)
    ours, replacing = rules(wanted, home, decline), rules(wanted, home)
    cold = {"ours": seconds(lambda: ours.index.candidates(GraphView(fresh(module))))}
    stock = Stock()
    cold["torch, loading"] = stock.seconds_to_load
    as_many = rules(wanted[: stock.attention_count], home, decline)
    ways: dict[str, Callable[[GraphModule], float]] = {
        "torch, all patterns": stock.time_joint,
        "ours": lambda m: seconds(lambda: apply(ours, m)),
        "ours, candidates alone": lambda m: seconds(lambda: ours.index.candidates(GraphView(m))),
        "torch, attention alone": stock.time_attention,
        "ours, as many": lambda m: seconds(lambda: apply(as_many, m)),
        "ours, replacing all": lambda m: seconds(lambda: apply(replacing, m)),
    }
    found: Times = defaultdict(list)
    for repeat in range(repeats + 1):
        for name, run in ways.items():
            copy = fresh(module)
            gc.collect()
            found[name].append(run(copy))
        if repeat == 0:
            cold |= {f"{name}, first graph": times.pop() for name, times in found.items()}
        print(f"  round {repeat} of {repeats}", file=sys.stderr)
    median = {name: statistics.median(times) for name, times in found.items()}
    rewrite = apply(replacing, fresh(module))
    return {
        "nodes": len(module.graph.nodes),
        "patterns": {"ours": len(wanted), "torch": stock.count, "torch, attention": stock.attention_count},
        "matches": len(rewrite.matches),
        "seconds": median,
        "cold": cold,
        "ratio": median["ours"] / median["torch, all patterns"],
        "ratio of attention alone": median["ours, as many"] / median["torch, attention alone"],
    }


# ------------------------------------------------------------------------------------------------------------ loading


def load(path: Path) -> dict[str, float]:
    """Milliseconds to read a file of patterns with the operators that they require, and to create all its patterns."""
    import torch._inductor.inductor_prims  # noqa: F401  a pattern with an unregistered operator is not created

    started = time.process_time()
    store = Store(path)
    variants = [variant for name in store for variant in store.variants(name)]
    assert all(variant.required for variant in variants)
    read = time.process_time()
    made = [variant.pattern for variant in variants]
    assert None not in made
    return {"reading": 1e3 * (read - started), "making": 1e3 * (time.process_time() - read)}


def loading(home: Path, repeats: int) -> dict[str, float]:
    found: Times = defaultdict(list)
    for _ in range(repeats):
        command = [sys.executable, __file__, "--load", str(home / f"{FILE}.json")]
        for name, spent in json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        ).items():
            found[name].append(spent)
    median = {name: statistics.median(times) for name, times in found.items()}
    return {**median, "in all": statistics.median(map(sum, zip(*found.values(), strict=True)))}


# ------------------------------------------------------------------------------------------------------------- growth


def repeated(size: int, blocks: Sequence[GraphModule]) -> GraphModule:
    """A graph of about `size` nodes: a chain of blocks, each a function of the last one's result."""
    graph = Graph()
    held: dict[str, Node] = {}

    def given(node: Node) -> Node:
        if node.name not in held:
            held[node.name] = graph.placeholder(node.name)
            held[node.name].meta.update(node.meta)
        return held[node.name]

    for block in blocks:
        for node in block.graph.find_nodes(op="placeholder"):
            given(node)
    last = next(iter(held.values()))
    while len(graph.nodes) < size:
        for block in blocks:
            inputs = block.graph.find_nodes(op="placeholder")
            new = {node: last if i < 3 else given(node) for i, node in enumerate(inputs)}
            for node in block.graph.nodes:
                if node.op == "call_function":
                    args, kwargs = map_arg((node.args, node.kwargs), new.__getitem__)
                    new[node] = graph.call_function(node.target, args, kwargs)
                    new[node].meta.update(node.meta)
            result = block.graph.output_node().args[0]
            last = new[result[0] if isinstance(result, (list, tuple)) else result]
    graph.output((last,))
    return GraphModule(torch.nn.Module(), graph)


def attention_blocks() -> list[GraphModule]:
    """Attention with each kind of mask, each of which a pattern matches."""
    from torch._inductor.decomposition import select_decomp_table

    from eductor.compat import FakeTensorMode
    from eductor.patterns.trace.tracing import aten_graph

    mode, found = FakeTensorMode(), []
    for mask in ("unmasked", "added", "chosen"):
        spelling = Spelling("heads_first", "divided", mask, "kept", "native", "inference")
        values = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in spelling.inputs.values()]
        found.append(aten_graph(spelling.search, values, (), mode, select_decomp_table())[0])
    return found


def growth(sizes: Sequence[int], repeats: int, found: Rules) -> list[dict[str, Any]]:
    blocks = attention_blocks()
    modules = {size: repeated(size, blocks) for size in sizes}
    times: dict[int, list[float]] = defaultdict(list)
    candidates: dict[int, int] = {}
    for _ in range(repeats):
        for size, module in modules.items():
            gc.collect()
            started = time.process_time()
            candidates[size] = len(found.index.candidates(GraphView(module)))
            times[size].append(time.process_time() - started)
    return [
        {
            "nodes": len(modules[size].graph.nodes),
            "candidates": candidates[size],
            "seconds": statistics.median(spent),
            "us_per_node": 1e6 * statistics.median(spent) / len(modules[size].graph.nodes),
        }
        for size, spent in times.items()
    ]


# --------------------------------------------------------------------------------------------------------- the report


def measure(
    layers: int, repeats: int, sizes: Sequence[int], wanted: Sequence[Spelling] | None = None
) -> dict[str, Any]:
    chosen = list(wanted if wanted is not None else spellings())
    home = stored(chosen)
    found = {
        "beside": beside_stock(layers, repeats, chosen, home),
        "loading": loading(home, repeats),
        "growth": growth(sizes, repeats, rules(chosen, home)),
    }
    reached = {
        "ours / torch's": found["beside"]["ratio"],
        "loading": found["loading"]["in all"],
        "growth": found["growth"][-1]["us_per_node"] / found["growth"][0]["us_per_node"],
    }
    return {**found, "reached": reached, "limits": LIMITS, "ok": all(reached[k] <= LIMITS[k] for k in LIMITS)}


def as_lines(result: dict[str, Any]) -> str:
    beside, spent, reached = result["beside"], result["loading"], result["reached"]
    counts = ", ".join(f"{name} {count}" for name, count in beside["patterns"].items())
    times = as_text(("on one graph", "ms"), [(n, f"{1e3 * s:.1f}") for n, s in beside["seconds"].items()])
    cold = as_text(("for the first time", "ms"), [(n, f"{1e3 * s:.1f}") for n, s in beside["cold"].items()])
    rows = [
        (f"{m['nodes']:,}", m["candidates"], f"{1e3 * m['seconds']:.1f}", f"{m['us_per_node']:.2f}")
        for m in result["growth"]
    ]
    return "\n".join(
        (
            f"{beside['nodes']} nodes; patterns: {counts}; ours matched {beside['matches']} times",
            "",
            times,
            "",
            cold,
            "",
            f"ours / torch's: {reached[_RATIO]:.3f} (at most {LIMITS[_RATIO]} is allowed); "
            f"attention alone, as many patterns: {beside['ratio of attention alone']:.3f}",
            f"loading: {spent['in all']:.1f} ms (at most {LIMITS['loading']:.0f} is allowed): reading "
            f"{spent['reading']:.1f}, creating the patterns {spent['making']:.1f}",
            "",
            as_text(("nodes", "candidates", "ms", "µs per node"), rows),
            f"growth: {reached['growth']:.2f} times as long per node (at most {LIMITS['growth']} is allowed)",
        )
    )


_RATIO = "ours / torch's"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measures the pattern matcher.")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of nodes, the smallest first")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.load is not None:
        print(json.dumps(load(args.load)))
        return 0
    result = measure(args.layers, args.repeats, [int(size) for size in args.sizes.split(",")])
    print(json.dumps(result) if args.json else as_lines(result))
    return not result["ok"]


if __name__ == "__main__":
    sys.exit(main())
