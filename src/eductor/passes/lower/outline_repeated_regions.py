"""Outlines repeated layers: the engine compiles one body, and calls it for each of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property

import torch
from torch.fx import Node

from eductor.cost import device_of
from eductor.graph import GraphView, Rewriter, tensor_of, value_of
from eductor.passes.lower.repeated.cuts import Cuts
from eductor.passes.lower.repeated.outlining import outline
from eductor.passes.lower.repeated.region import Region
from eductor.passes.lower.repeated.runs import Run, runs_of
from eductor.passes.lower.repeated.tokens import Types, tokens_of
from eductor.pipeline.base import Context, f32, graph_pass

SHORTEST = 24
"""The calls of the smallest region: the call of a body takes about 3 us, as long as the launch of a small kernel."""
LEAST = 40
"""The calls that must be saved, as bodies and their calls take time to compile, too."""
MOST_LOST = 0.03
"""The part of a region's estimated time that its cut and its call may cost."""
CALL, HOST = 3e-6, 2e-5
"""Seconds of the call of a body, and those that the host takes for a kernel and its memory."""
WORTH = 10
"""How much a share of the run time counts against the same share of the calls, where a cheaper cut leaves a region out."""

_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)
_CHANNELS_LAST = {4: (torch.channels_last,), 5: (torch.channels_last_3d,)}


@graph_pass(stage="lower", numerics="exact", enters_bodies=False)
def outline_repeated_regions(graph: GraphView, rewrite: Rewriter, *, context: Context) -> None:
    """Outlines repeated layers: the engine compiles one body, and calls it for each of them.

    Layers are found by their calls alone, without annotations: consecutive calls of the same operators on operands of the
    same types, again and again. They are cut where least is lost for fusion. A region holds no write, no draw from a
    generator and no symbolic size. Its results share no memory with other values: views of them are made outside.

    It pays where a layer occurs often: lowering, fusing and generating code take most of the time of a compile. It
    declines where the cuts and the calls would take more than 3 percent of the estimated run time, and on a GPU for
    convolutions that are not in channels last, which run so, while a body keeps the layouts of the graph. The option
    `regions` decides otherwise: False outlines nothing, True whatever repeats.
    """
    if context.options.regions is not False:
        _Search(graph, rewrite, context).run()


class _Search:
    """One run of the pass over one graph."""

    def __init__(self, graph: GraphView, rewrite: Rewriter, context: Context) -> None:
        self._graph, self._rewrite, self._options = graph, rewrite, context.options
        self._is_forced = context.options.regions is True
        self._calls = [node for node in graph.nodes if node.op == "call_function"]

    def run(self) -> None:
        types, shortest = Types(), 2 if self._is_forced else SHORTEST
        starts: list[tuple[int, int]] = []
        for run, start, count in runs_of(tokens_of(self._calls, types), shortest, self._cut):
            starts += ((start + i * run.period, run.period) for i in range(count))
        alike: dict[Hashable, list[Region]] = {}
        for start, period in sorted(starts):
            region = Region(self._calls[start : start + period])
            if region.is_callable:
                alike.setdefault(region.key(types), []).append(region)
        worth = {regions[0].calls[0]: regions for regions in alike.values() if self._is_worth(regions)}
        for call in self._graph.candidates(worth):
            outline(self._rewrite, worth[call])

    @cached_property
    def _cuts(self) -> Cuts:
        return Cuts(self._calls, self._graph.output.all_input_nodes)

    def _cut(self, run: Run) -> tuple[int, int] | None:
        """The first call and the number of the regions of a run, cut where it costs least; None if it costs too much."""
        calls = self._calls[run.start : run.start + run.period]
        moved = next(filter(_changes_layout, calls), None)
        if moved is not None and not self._is_forced:
            self._rewrite.reject("a body would transpose what its convolutions get and return", moved)
            return None
        device = next((device_of(t.device, self._options) for t in map(tensor_of, calls) if t is not None), None)
        if device is None:
            return None
        time, most, choices = self._cuts.time(calls, device) or CALL, (run.end - run.start) // run.period, []
        whole = time + HOST * self._cuts.kernels(calls)
        for start in range(run.start, run.start + run.period):
            count = (run.end - start) // run.period
            inner = sorted(self._cuts.prices[start + run.period : start + count * run.period : run.period])
            if inner:
                called = CALL + device.launch * self._cuts.splits[start + run.period]
                lost = inner[len(inner) // 2] / device.bandwidth / time + called / whole
                choices.append((WORTH * lost + (most - count) / most, lost, start, count))
        _, lost, start, count = min(choices)
        if self._is_forced or lost <= MOST_LOST:
            return start, count
        reason = f"{count} regions of {run.period} calls would take {lost:.0%} more time if they shared a body"
        self._rewrite.reject(reason, self._calls[start])
        return None

    def _is_worth(self, regions: Sequence[Region]) -> bool:
        saved = (len(regions) - 1) * len(regions[0].calls)
        if saved and not self._is_forced and saved < LEAST:
            self._rewrite.reject(f"a shared body would save {saved} calls, fewer than {LEAST}", regions[0].calls[0])
            return False
        return saved > 0


def _changes_layout(call: Node) -> bool:
    """Whether a convolution runs in channels last, though its result is not so in the graph, whose layouts a body keeps."""
    value = value_of(call)
    result = value[0] if isinstance(value, tuple) else value
    if call.target not in _CONVOLUTIONS or not isinstance(result, torch.Tensor) or result.device.type != "cuda":
        return False
    return not any(result.is_contiguous(memory_format=f) for f in _CHANNELS_LAST.get(result.dim(), ()))


def _layer(x: torch.Tensor) -> torch.Tensor:
    for step in range(6):
        x = torch.tanh(x @ x.t() + step).softmax(-1)
    return x


@outline_repeated_regions.example
def three_layers(x: torch.Tensor = f32(512, 512)) -> torch.Tensor:
    return _layer(_layer(_layer(x)))


@outline_repeated_regions.refuses("would save 30 calls, fewer than 40")
def two_layers(x: torch.Tensor = f32(512, 512)) -> torch.Tensor:
    return _layer(_layer(x))


@outline_repeated_regions.refuses("more time if they shared a body")
def layers_that_fuse(x: torch.Tensor = f32(512, 512)) -> torch.Tensor:
    for step in range(60):
        x = (x.sin() * x + 1).cos() * (step % 30)
    return x
