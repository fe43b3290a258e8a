"""Programs that give every pass something to do and every fault a victim, made from the examples of the passes.

A host calls an example of a pass three times; what the second call returns goes on to the victims. So a pass makes
matches before and after the one that is going to be wrong, with no list of passes anywhere: a new pass comes with
examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.utils._pytree import tree_leaves

from eductor.engines import ATEN, INDUCTOR, Engine
from eductor.graph.capture import capture
from eductor.graph.effects.order import sort_in_place
from eductor.graph.snapshot import Snapshot
from eductor.graph.values.evaluate import propagate
from eductor.graph.values.meta import value_of
from eductor.observe.manual.manual import capture_example
from eductor.pipeline.base import Example, Numerics, Pass, Stage
from eductor.pipeline.pipeline import Pipeline
from eductor.pipeline.registry import Registry, Step

CALLS = 3
DRAWING = Engine("aten that draws anew", ATEN.compile, seeded_random=True)
"""The passes that redraw are left out with engines that draw as eager does."""
LOWERING = Engine("aten after the passes for Inductor", ATEN.compile, lower=INDUCTOR.lower)
PLANTED: tuple[Stage, ...] = ("pre_grad", "joint", "post_grad", "lower")
"""Not the stage partition: what its passes do depends on what the partitioner chose."""


def victims(a: torch.Tensor, base: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Something for each kind of fault, each of it computed from `a` in a step or two, and each returned."""
    wave, mixed, buffer, other_buffer = a.sin(), a + base, a.neg(), a.sinh()
    early, copy = buffer / 2.0, other_buffer.clone()
    buffer.add_(1.0)
    other_buffer.mul_(2.0)
    drawn, later = torch.rand_like(a), torch.randn_like(a)
    return (
        a * 3.0,
        torch.softmax(a, 1),
        mixed.to(torch.bfloat16).to(a.dtype),
        torch.add(a, base, alpha=2),
        a - base,
        torch.where(base > 0, a, base),
        a.mean(dim=0),
        torch.maximum(a, base),
        (a * base) * 0.0 + 0.0,
        (a / base).abs() * 0.0,
        wave,
        wave.clone(),
        buffer,
        early,
        other_buffer,
        copy,
        a * drawn,
        a + drawn,
        a - later,
        mixed,
    )


def first_result(returned: Any) -> torch.Tensor:
    """What the victims are computed from: the first that an example returns, as a matrix of floats or more."""
    y = tree_leaves(returned)[0]
    y = y if y.dtype.is_floating_point else y.float()
    return y if y.dim() > 1 else y.repeat(2, 1)


@dataclass(frozen=True)
class Host:
    """A pass at its place, what it promises of numbers, and a program made from one of its examples."""

    step: Step
    example: Example
    numerics: Numerics

    @property
    def stage(self) -> Stage:
        return self.step.stage

    @property
    def pass_(self) -> Pass:
        return self.step.load()

    def __str__(self) -> str:
        return f"{self.step.address}-{self.example.name}"

    @property
    def is_compiled(self) -> bool:
        """A graph that was edited after it was captured cannot come out of a compile."""
        return self.example.prepare is None

    @property
    def can_be_cut(self) -> bool:
        """Whether a bisection may leave out matches of the pass: a compile cannot do without a required one."""
        return not self.step.required

    @cached_property
    def calls(self) -> int:
        """How many calls the pass has to see for a match."""
        return sum(n.op == "call_function" for n in capture_example(self.stage, self.example).graph.nodes)

    @property
    def has_gradients(self) -> bool:
        """Whether the victims are differentiated with respect to what the example is given.

        Not where it returns what is not contiguous: such gradients are rounded in another way than eager's.
        """
        result = tree_leaves(self.example.fn(*self.example.make_inputs()))[0]
        suits = result.dtype.is_floating_point and result.is_contiguous()
        return self.is_compiled and suits and not self.pass_.contract.inference_only

    @cached_property
    def inputs(self) -> list[torch.Tensor]:
        """One to add to what the second call returns, and those of each call."""
        given = [spec.make(100 * call + i) for call in range(CALLS) for i, spec in enumerate(self.example.inputs)]
        like = first_result(self.example.fn(*self.example.make_inputs()))
        base = torch.empty_like(like).copy_(torch.randn(like.shape, generator=torch.Generator().manual_seed(7)))
        return [x.requires_grad_(self.has_gradients and x.dtype.is_floating_point) for x in (base, *given)]

    def program(self, base: torch.Tensor, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """What is compiled."""
        each = len(self.example.inputs)
        returned = [self.example.fn(*inputs[call * each : (call + 1) * each]) for call in range(CALLS)]
        return (*victims(first_result(returned[1]), base), *returned)

    def graph(self) -> GraphModule:
        """The same as a graph, with what the example does to its graph done in each call; without gradients."""
        dialect = "torch" if self.stage == "pre_grad" else "aten"
        each = len(self.example.inputs)
        base, *given = self.inputs
        host, results = Graph(), []
        holder = torch.nn.Module()
        places = [host.placeholder(f"input_{i}") for i in range(len(self.inputs))]
        for call in range(CALLS):
            part = given[call * each : (call + 1) * each]
            module = capture_example(self.stage, self.example, inputs=part)
            results.append(_inline(host, module, places[1 + call * each :][:each], holder))
        returned = tree_leaves(self.example.fn(*given[each : 2 * each]))[0]
        module = capture(lambda y, base: victims(first_result(y), base), [returned, base], dialect)
        last = _inline(host, module, [results[1][0], places[0]], holder)
        host.output((*last, *(node for result in results for node in result)))
        return _with_values(GraphModule(holder, host), self.inputs)

    def pipeline(self, pass_: Pass | None = None) -> Pipeline:
        """This pass, and all that are on behind autograd; none elsewhere that would take its matches away."""
        steps = [s for s in Registry.default().steps() if not s.is_slot and s.address != self.step.address]
        elsewhere = [s.address for s in steps if s.name == self.step.name or s.stage == "pre_grad"]
        pipeline = Pipeline.default(enable=[self.step.address], disable=elsewhere)
        return pipeline.replaced(self.step.address, pass_) if pass_ is not None else pipeline

    @property
    def options(self) -> dict[str, Any]:
        """How it is compiled; bitwise as eager where the pass is."""
        if self.numerics == "redraws":
            return {"engine": DRAWING}
        if self.stage == "lower":
            return {"engine": LOWERING}
        return {"engine": "aten", "profile": "exact" if self.numerics == "exact" else "fast"}


def _inline(host: Graph, module: GraphModule, inputs: list[Node], holder: torch.nn.Module) -> list[Node]:
    """Adds the nodes of a graph, sorted or not, to another one, in their order; returns what it returned."""
    new: dict[Node, Node] = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True))
    for old, node in new.items():
        node.meta = node.meta or dict(old.meta)
    calls = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
    for node in calls:
        new[node] = host.create_node(node.op, node.target, (), {}, node.name)
        new[node].meta = dict(node.meta)
        if node.op == "get_attr":
            setattr(holder, str(node.target), getattr(module, str(node.target)))
    for node in calls:
        new[node].args, new[node].kwargs = map_arg((node.args, node.kwargs), new.__getitem__)
    return [new[n] for n in tree_leaves(module.graph.output_node().args) if isinstance(n, Node)]


def _with_values(module: GraphModule, inputs: list[torch.Tensor]) -> GraphModule:
    """Fake values of one mode for a graph that was put together from several; it may be unsorted."""
    for node in module.graph.nodes:
        for key in ("val", "example_value"):
            node.meta.pop(key, None)
    copy = GraphModule(module, Snapshot(module.graph).graph())
    sort_in_place(copy.graph)
    propagate(copy, inputs)
    values = {node.name: value_of(node) for node in copy.graph.nodes if node.op != "output"}
    for node in module.graph.nodes:
        if node.name in values:
            node.meta["val"] = values[node.name]
    return module


STANDING_FOR_ALL = (
    "pre_grad/normalize_node_kwargs_pass",
    "post_grad/eliminate_dead_code",
    "post_grad/remove_noop_ops",
    "post_grad/stable_topological_sort",
)


LEFT_OUT = (
    "lower/fill_constants",  # a compile makes inputs of constants
    "lower/keep_draws_in_order",  # the engine of these programs draws as eager does
    "lower/outline_repeated_regions",  # all nodes of its long examples would be compared for each fault
    "lower/store_small_masks",  # it is about kernels of a GPU
)


def steps() -> list[Step]:
    """Every pass at each of its places, but for those that run on other devices alone, or may change any result.

    Those that are off, or whose examples need options or a context, are left out: a compile does not run them so. Of the many before
    autograd and in the stage post_grad, those that fire on any graph stand for all: the faults are planted into graphs.
    """
    found = [step for step in Registry.default().steps() if not step.is_slot]
    found = [s for s in found if s.stage in ("joint", "lower") or s.address in STANDING_FOR_ALL]
    found = [
        s
        for s in found
        if s.address not in LEFT_OUT and s.load().on and not any(e.options or e.context for e in s.load().examples)
    ]
    contracts = {step: step.load().contract for step in found}
    return [s for s, c in contracts.items() if "cpu" in (c.devices or ("cpu",)) and c.numerics != "changes"]


def all_hosts() -> list[Host]:
    """A host for each example of each pass at each of its places."""
    pairs = [(step, example) for step in steps() for example in step.load().examples]
    return [Host(step, example, step.load().contract.numerics) for step, example in pairs]
