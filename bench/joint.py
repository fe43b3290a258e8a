"""Benchmarks all joint passes against torch's, on the joint graph of a GPT-2 training step.

python bench/joint.py [--json] [--layers 12] [--repeats 7]

Both get copies of one graph, made outside of the timing, and take turns in one process; medians of process time count.
The first graph of a process, with everything that is loaded or traced on first use, is reported separately. The exit code
is 1 if ours take more than a third of torch's time. It needs transformers.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from eductor.graph.values.meta import fake_mode_of
from eductor.observe.table import as_text
from eductor.options import Options
from eductor.pipeline.base import Context
from eductor.pipeline.instruments import Instrument, PassRun
from eductor.pipeline.pipeline import Pipeline
from patterns import fresh, joint_graph, seconds

LIMIT = 1 / 3
"""The allowed ratio of our time to torch's."""


class Passes(Instrument):
    """Seconds and matches of each pass."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.matches: Counter[str] = Counter()

    def after_pass(self, run: PassRun) -> None:
        self.seconds[run.address].append(run.seconds)
        self.matches[run.address] = len(run.matches)


def stock(module: GraphModule) -> None:
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    with V.set_fake_mode(fake_mode_of(module.graph)):
        joint_graph_passes(module)


def ours(module: GraphModule, instruments: Sequence[Instrument] = ()) -> None:
    options = Options()
    Pipeline.of(options).run("joint", module, Context("joint", options, False), list(instruments))


def measure(layers: int, repeats: int) -> dict[str, Any]:
    module = joint_graph(layers)
    ways: dict[str, Callable[[GraphModule], None]] = {"torch": stock, "eductor": ours}
    found: dict[str, list[float]] = defaultdict(list)
    for repeat in range(repeats + 1):
        for name, run in ways.items():
            copy = fresh(module)
            gc.collect()
            started = time.process_time()
            run(copy)
            found[name].append(time.process_time() - started)
        print(f"  round {repeat} of {repeats}", file=sys.stderr)
    first = {name: times.pop(0) for name, times in found.items()}
    median = {name: statistics.median(times) for name, times in found.items()}
    passes = Passes()
    looked_at = fresh(module)
    in_all = seconds(lambda: ours(looked_at, [passes]))
    ratio = median["eductor"] / median["torch"]
    return {
        "nodes": len(module.graph.nodes),
        "seconds": median,
        "first": first,
        "passes": {name: times[0] for name, times in passes.seconds.items()},
        "matches": dict(passes.matches),
        "looked at": in_all,
        "ratio": ratio,
        "ratio of the first graph": first["eductor"] / first["torch"],
        "limit": LIMIT,
        "ok": ratio <= LIMIT,
    }


def as_lines(result: dict[str, Any]) -> str:
    rows = [
        (name, f"{1e3 * result['first'][name]:.1f}", f"{1e3 * spent:.1f}") for name, spent in result["seconds"].items()
    ]
    passes = [
        (name, result["matches"][name], f"{1e3 * spent:.1f}")
        for name, spent in sorted(result["passes"].items(), key=lambda item: -item[1])
    ]
    return "\n".join(
        (
            f"all joint passes over {result['nodes']} nodes",
            as_text(("passes of", "first graph, ms", "ms"), rows),
            "",
            as_text(("pass", "matches", "ms"), passes),
            "",
            f"ours take {result['ratio']:.2f} of torch's time, {result['ratio of the first graph']:.2f} on the first "
            f"graph of the process; {LIMIT:.2f} is allowed.",
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
