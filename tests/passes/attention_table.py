"""Which spellings of attention are fused, by us and by torch's own passes: `python tests/passes/attention_table.py`
writes the table of `docs/attention.md` anew. It takes a minute."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from attention_spellings import SPELLINGS, Spelling
from torch.fx import GraphModule

from eductor.autograd import aot_dispatch_autograd_graph
from eductor.autograd.captured import Captured, Fakes
from eductor.graph.snapshot import copy_of
from eductor.graph.values.meta import fake_mode_of
from eductor.observe.table import as_markdown
from eductor.options import Options
from eductor.pipeline.base import Context
from eductor.pipeline.pipeline import Pipeline

PAGE = Path(__file__).parents[2] / "docs" / "attention.md"
BEGIN, END = "<!-- the table begins -->\n", "<!-- the table ends -->\n"


def graph_of(spelling: Spelling, training: bool) -> GraphModule:
    """The joint graph of a program, in Inductor's decompositions."""
    from torch._inductor.decomposition import select_decomp_table

    torch._dynamo.reset()
    found: list[GraphModule] = []

    def backend(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        captured = Captured(module)
        fakes = Fakes.of([*captured.held, *inputs])
        found.append(aot_dispatch_autograd_graph(captured, fakes, dict(select_decomp_table())).module)
        return module.forward

    given = [
        x.requires_grad_(training and i < 3) if x.is_floating_point() else x for i, x in enumerate(spelling.make())
    ]
    with torch.set_grad_enabled(training):
        torch.compile(spelling.fn, backend=backend, fullgraph=True)(*given)
    return found[0]


def ours(module: GraphModule, training: bool) -> None:
    options = Options()
    Pipeline.of(options).run("joint", module, Context("joint", options, not training), [])


def stock(module: GraphModule, training: bool) -> None:
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    with V.set_fake_mode(fake_mode_of(module.graph)):
        joint_graph_passes(module)


def is_fused(spelling: Spelling, passes: Callable[[GraphModule, bool], None], training: bool) -> bool:
    module = graph_of(spelling, training)
    module = GraphModule(module, copy_of(module.graph))
    passes(module, training)
    return any("scaled_dot_product" in str(node.target) for node in module.graph.nodes)


def rows() -> list[tuple[str, ...]]:
    """A row for each spelling: who fuses it, in inference and in training."""

    def row(spelling: Spelling) -> tuple[str, ...]:
        found = (
            is_fused(spelling, passes, training) if spelling.differentiable or not training else None
            for training in (False, True)
            for passes in (ours, stock)
        )
        print(f"  {spelling.name}", file=sys.stderr)
        return (
            spelling.name.replace("_", " "),
            spelling.family,
            *({True: "yes", False: "no", None: ""}[f] for f in found),
        )

    return [row(spelling) for spelling in SPELLINGS]


def table(found: Sequence[tuple[str, ...]]) -> str:
    heads = ("spelling", "family", "inference", "stock", "training", "stock, training")
    counts = [sum(r[i] == "yes" for r in found) for i in range(2, 6)]
    trained = sum(r[4] != "" for r in found)
    return (
        f"Of {len(found)} spellings, {counts[0]} are fused in inference, {counts[1]} by torch {_version()}; of {trained} that are "
        f"trained, {counts[2]} and {counts[3]}.\n\n{as_markdown(heads, found)}\n"
    )


def _version() -> str:
    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


def written() -> str:
    """The page with the tables of the code as it is."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    return f"{head}{BEGIN}{table(rows())}{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(written())
