"""Benchmarks the partitioner against torch's and eager: the bytes saved for the backward, and the time to choose them.

python bench/partition.py [--json] [--layers 12] [--repeats 5]

All partitioners get copies of one joint graph, made outside of the timing, and take turns; the least process time
counts. Ours runs twice, with its own prices and, as `compat`, with torch's. Eager's bytes are the memory that its
autograd holds, without parameters and inputs; those of the others are the results that the forward graph passes to the
backward graph. Graphs of 5,000 and 50,000 nodes show how the time of the choice grows. The exit code is 1 if ours saves
more than eager anywhere, more than 0.9 of torch's in the geometric mean, takes more than a fifth of torch's time for
GPT-2, more than 5 seconds for the large graph, or grows faster than the graph. It needs transformers.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

import eductor
from eductor.autograd import Joint
from eductor.compat import FakeTensorMode, lazy_module
from eductor.cost import bytes_of
from eductor.graph.snapshot import copy_of
from eductor.measure.steady import held_for_the_backward
from eductor.observe.table import as_text
from eductor.partition import choose_saved_values_set, partition_fn
from eductor.partition.node_info import NodeInfo
from kernels import gpt2, resnet
from pre_grad import Decoder, Logits, Ranking

aten = torch.ops.aten

OF_TORCH, OF_TIME = 0.9, 0.2
LONGEST, STEEPEST = 5.0, 2.0
"""Seconds allowed for 50,000 nodes; the allowed growth of the time per node from 5,000 nodes."""


def models(layers: int) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    yield "gpt2", Logits(gpt2("cpu", layers)[0]), torch.randint(0, 500, (2, 64))
    yield "decoder", Decoder(128, 4, 384), torch.randn(4, 64, 128)
    yield "ranking", Ranking(16, 16), torch.randint(0, 1000, (128, 16))
    yield "resnet", Logits(resnet("cpu", 2)[0]), torch.randn(2, 3, 64, 64)


def joint_of(model: nn.Module, x: torch.Tensor) -> Joint:
    """The joint graph of a step, after the joint passes, as the partitioner gets it."""
    found: list[Joint] = []
    original = eductor.compiler.partition

    def kept(flow: Any, joint: Joint) -> Any:
        found.append(fresh(joint))
        return original(flow, joint)

    torch._dynamo.reset()
    eductor.compiler.partition = kept
    try:
        eductor.compile(lambda x: model(x).float().square().mean(), engine="inductor")(x)
    finally:
        eductor.compiler.partition = original
    return found[0]


def fresh(joint: Joint) -> Joint:
    return replace(joint, module=lazy_module(joint.module, copy_of(joint.module.graph)))


def stock(joint: Joint) -> GraphModule:
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    static = sorted(joint.static)
    count = len(joint.analysis.returns)
    return min_cut_rematerialization_partition(
        joint.module, None, compiler="inductor", num_fwd_outputs=count, static_lifetime_input_indices=static
    )[1]


def ours(joint: Joint, policy: str = "priced") -> GraphModule:
    options = {"engine": "inductor", "recompute": True, "partition_policy": policy}
    backward = partition_fn(joint, options=options).backward
    assert backward is not None
    return backward


def compat(joint: Joint) -> GraphModule:
    """Our partitioner with torch's prices and bans; it should save what torch does, so prices explain the difference."""
    return ours(joint, "compat")


def handed_over(backward: GraphModule, joint: Joint) -> int:
    """The bytes of a backward graph's inputs, without inputs of the forward and gradients."""
    given = {node.name for node in joint.module.graph.find_nodes(op="placeholder")}
    return sum(bytes_of(node) for node in backward.graph.find_nodes(op="placeholder") if node.name not in given)


def held_by_eager(model: nn.Module, x: torch.Tensor) -> int:
    """The bytes that autograd holds after a forward, without parameters and inputs."""
    given = [x, *model.parameters(), *model.buffers()]
    return held_for_the_backward(lambda: model(x).float().square().mean(), given)[0]


def large(nodes: int) -> tuple[Graph, NodeInfo]:
    """A chain of layers with `nodes` nodes in total, sorted into forward and backward."""
    with FakeTensorMode():
        value = torch.empty(64, 64)
    graph = Graph()

    def made(node: Node) -> Node:
        node.meta["val"] = value
        return node

    x, w, tangent = (made(graph.placeholder(name)) for name in ("x", "w", "tangents_1"))
    h, kept = x, []
    for _ in range(nodes // 7):
        product = made(graph.call_function(aten.mm.default, (h, w)))
        bent = made(graph.call_function(aten.sin.default, (product,)))
        h = made(graph.call_function(aten.add.Tensor, (bent, h)))
        kept.append(product)
    last, late = tangent, {tangent}
    for product in reversed(kept):
        slope = made(graph.call_function(aten.cos.default, (product,)))
        scaled = made(graph.call_function(aten.mul.Tensor, (last, slope)))
        back = made(graph.call_function(aten.mm.default, (scaled, w)))
        last = made(graph.call_function(aten.add.Tensor, (back, last)))
        late |= {slope, scaled, back, last}
    graph.output((h, last))
    inside = tuple(node for node in graph.nodes if node.op != "output")
    none: frozenset[Node] = frozenset()
    weights = frozenset({w})
    return graph, NodeInfo(inside, (h,), (last,), (x, w), (tangent,), (), (), (), none, weights, none, frozenset(late))


def growth(sizes: tuple[int, int] = (5_000, 50_000)) -> dict[str, Any]:
    """Seconds to choose what to save, in a graph and in one ten times as large."""
    found = {}
    for size in sizes:
        graph, info = large(size)
        gc.collect()
        started = time.process_time()
        chosen = choose_saved_values_set(graph, info, options={"recompute": True})
        found[size] = time.process_time() - started
        assert chosen
    few, many = (found[size] for size in sizes)
    return {"seconds": found, "ok": many < LONGEST and many / few < STEEPEST * sizes[1] / sizes[0]}


def measure(layers: int, repeats: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    ways: dict[str, Callable[[Joint], GraphModule]] = {"torch": stock, "compat": compat, "eductor": ours}
    for name, model, x in models(layers):
        joint = joint_of(model.train(), x)
        seconds = dict.fromkeys(ways, math.inf)
        saved = {"eager": held_by_eager(model, x)}
        for _ in range(repeats):
            for way, run in ways.items():
                copy = fresh(joint)
                gc.collect()
                started = time.process_time()
                backward = run(copy)
                seconds[way] = min(seconds[way], time.process_time() - started)
                saved[way] = handed_over(backward, joint)
        rows[name] = {"nodes": len(joint.module.graph.nodes), "saved": saved, "seconds": seconds}
        print(f"  {name}: {saved}", file=sys.stderr, flush=True)
    ratios = [row["saved"]["eductor"] / row["saved"]["torch"] for row in rows.values()]
    time_ratio = rows["gpt2"]["seconds"]["eductor"] / rows["gpt2"]["seconds"]["torch"]
    mean = math.prod(ratios) ** (1 / len(ratios))
    never_more = all(row["saved"]["eductor"] <= row["saved"]["eager"] for row in rows.values())
    grown = growth()
    ok = never_more and mean <= OF_TORCH and time_ratio <= OF_TIME and grown["ok"]
    return {"models": rows, "bytes": mean, "time": time_ratio, "growth": grown, "ok": ok}


def as_lines(result: dict[str, Any]) -> str:
    names = ("torch", "compat", "ours")
    header = (
        "model",
        "nodes",
        "eager, bytes",
        *(f"{name}, bytes" for name in names),
        *(f"{name}, ms" for name in names),
    )
    rows = [
        (
            name,
            row["nodes"],
            *(f"{row['saved'][way]:,}" for way in ("eager", "torch", "compat", "eductor")),
            *(f"{1e3 * row['seconds'][way]:.0f}" for way in ("torch", "compat", "eductor")),
        )
        for name, row in result["models"].items()
    ]
    return (
        f"{as_text(header, rows)}\n\nOurs saves {result['bytes']:.2f} of torch's bytes in the geometric mean, "
        f"and takes {result['time']:.2f} of its time for GPT-2; {OF_TORCH} and {OF_TIME} are allowed.\n"
        + ", ".join(f"{nodes:,} nodes: {seconds:.2f} s" for nodes, seconds in result["growth"]["seconds"].items())
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    result = measure(given.layers, given.repeats)
    print(json.dumps(result) if given.json else as_lines(result))
    return int(not result["ok"])


if __name__ == "__main__":
    sys.exit(main())
