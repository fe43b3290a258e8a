"""Small graphs and passes that the tests of the pipeline share. Its top level can be imported by a reproducer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from eductor.graph import GraphView, Rewriter, capture, to_python
from eductor.options import Options
from eductor.pipeline import Context, Pass, PassRecord, Pipeline, Recorder, Stage, graph_pass
from eductor.pipeline.base import as_pass
from eductor.pipeline.registry import Registry, Row, Step

aten = torch.ops.aten


def waves(x: torch.Tensor) -> torch.Tensor:
    """The program of most tests: three sines of different things."""
    return x.sin() + (x * 2).sin() + (x + 1).sin()


def graph_of(
    fn: Callable[..., Any] = waves, *inputs: Any, stage: Stage = "joint", dynamic: bool = False
) -> GraphModule:
    """A captured graph in the dialect of the stage."""
    given = inputs or (torch.linspace(-1, 1, 6).reshape(2, 3),)
    return capture(fn, given, "torch" if stage == "pre_grad" else "aten", dynamic=dynamic)


def steps_of(*passes: Pass | Callable[..., Any], stage: Stage = "joint") -> Pipeline:
    """A pipeline of nothing but these passes, in this order."""
    found = [as_pass(p) for p in passes]
    return Pipeline(tuple(Step(stage, p.name, 1, "a test", "test", p) for p in found))


def run(
    module: GraphModule,
    *passes: Pass | Callable[..., Any],
    stage: Stage = "joint",
    is_inference: bool = False,
    instruments: Sequence[Any] = (),
    **options: Any,
) -> list[PassRecord]:
    """Runs passes over a graph and returns what became of each."""
    recorder = Recorder()
    context = Context(stage, Options(**options), is_inference)
    steps_of(*passes, stage=stage).run(stage, module, context, [recorder, *instruments])
    return recorder.records


def toy_registry(*names: str) -> Registry:
    """A registry with one stage of these rows; names in capitals are slots."""
    rows = tuple(Row(n, f"the row {n}", "" if n.isupper() else "nowhere") for n in names)
    return Registry((("pre_grad", ()), ("joint", rows), ("post_grad", ())))


def named(name: str, **declared: Any) -> Pass:
    """A pass that does nothing."""
    declared = {"stage": "joint", "numerics": "exact", **declared}

    @graph_pass(name=name, **declared)
    def nothing(graph: GraphView, rewrite: Rewriter) -> None:
        """Does nothing."""

    return nothing


def text_of(module: GraphModule) -> str:
    return to_python(module.graph)


@graph_pass(stage=("joint", "post_grad"), numerics="changes", on=False)
def sin_to_cos(graph: GraphView, rewrite: Rewriter) -> None:
    """Puts cosines for sines: easy to see, and wrong."""
    for node in graph.find(aten.sin):
        rewrite.replace(node, aten.cos, *node.args)


@graph_pass(stage=("joint", "post_grad"), numerics="exact")
def only_rejects(graph: GraphView, rewrite: Rewriter) -> None:
    """Looks at each sine and leaves it."""
    for node in graph.find(aten.sin):
        rewrite.reject("it is beautiful", node)


@graph_pass(stage="joint", numerics="exact")
def make_anew(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces each sine with an identical one."""
    for node in list(graph.find(aten.sin)):
        rewrite.replace(node, aten.sin.default, *node.args)


@graph_pass(stage="joint", numerics="exact")
def there_and_back(graph: GraphView, rewrite: Rewriter) -> None:
    """Changes each sine and changes it back."""
    for node in list(graph.find(aten.sin)):
        args = node.args
        rewrite.update(node, target=aten.cos.default)
        rewrite.update(node, target=aten.sin.default, args=args)


def plain_cos(graph: Graph) -> None:
    """Puts cosines for sines, with nothing but torch.fx."""
    for node in graph.find_nodes(op="call_function", target=aten.sin.default):
        node.target = aten.cos.default


def plain_nothing(graph: Graph) -> None:
    """Looks at the graph."""
    list(graph.nodes)


def plain_tag(graph: Graph) -> None:
    """Writes into the meta of each node, and changes nothing else."""
    for node in graph.nodes:
        node.meta["tag"] = "seen"
