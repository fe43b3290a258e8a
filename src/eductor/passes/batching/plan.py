"""Plans the batches of a whole graph, and the sources of their operands, before any edit.

A planned batch is a source for the batches after it: calls whose operands are all calls of one batch, in its order, take
the batch as it is. So parallel copies of a chain of calls become one batched chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from eductor.cost import bytes_of, copy_time, device_of, pays
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, requires_grad, tensor_of
from eductor.graph.reading.static import is_static
from eductor.passes.batching.buckets import ALONE, Bucket
from eductor.passes.batching.limits import Placing
from eductor.passes.batching.rule import BatchCall, BatchRule
from eductor.pipeline.base import Context
from eductor.views import ViewPlan, source_view, stacked

aten = torch.ops.aten


_GIVEN = ("placeholder", "get_attr")


@dataclass(frozen=True, slots=True)
class Shared:
    """One value, an operand of all calls."""

    node: Node


@dataclass(frozen=True, slots=True)
class View:
    """Parts of one tensor, whose stack is a view of it."""

    plan: ViewPlan


@dataclass(frozen=True, slots=True)
class Copy:
    """Values that are stacked; static ones may be packed once."""

    operands: tuple[Node, ...]
    is_packed: bool


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Consecutive results of another batch: nothing is stacked."""

    batch: Batch
    start: int
    size: int


Source = Shared | BatchRun | View | Copy


@dataclass(eq=False, slots=True)
class Batch:
    """Calls that become one, their sources, the node before which they go; the nodes of `moved` go there first."""

    rule: BatchRule
    calls: list[BatchCall]
    sources: list[Source | None]
    before: Node
    moved: list[Node]
    result: Node | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """A cat or stack with runs of operands that are the results of batches."""

    node: Node
    dim: int
    is_stack: bool
    operands: list[Node | BatchRun]


@dataclass(slots=True)
class Planner:
    """Takes buckets, operands first, and decides which of them become batches."""

    graph: GraphView
    rewrite: Rewriter
    context: Context
    batches: list[Batch] = field(default_factory=list)
    member_of: dict[Node, tuple[Batch, int]] = field(default_factory=dict)
    placing: Placing = field(init=False)

    def __post_init__(self) -> None:
        self.placing = Placing(self.graph)

    def consider(self, bucket: Bucket) -> None:
        with self.rewrite.rule(bucket.rule.name):
            for calls in self._parts(bucket):
                batch = self._batch(bucket.rule, calls)
                if isinstance(batch, No):
                    self.rewrite.reject(batch, *(call.node for call in calls))
                else:
                    self._accept(batch)

    def _accept(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.member_of.update({call.node: (batch, i) for i, call in enumerate(batch.calls)})
        self.placing.made.update({call.node: batch.before for call in batch.calls})
        self.placing.moved.update(dict.fromkeys(batch.moved, batch.before))

    def _batch(self, rule: BatchRule, calls: list[BatchCall]) -> Batch | No:
        if len(calls) < 2:
            return ALONE
        found = self.placing.place(call.node for call in calls)
        if isinstance(found, No):
            return found
        before, moved = found
        sources = [self._source(column, before) for column in zip(*(call.columns for call in calls), strict=True)]
        if all(source is None or isinstance(source, Shared) for source in sources):
            return No("they compute the same value from the same operands")
        copies = [source for source in sources if isinstance(source, Copy)]
        if rule.is_pointwise and copies and not self._feed_one(calls):
            return No("its operands are not a batch yet, and a pointwise operator does not pay for making one")
        return self._if_it_pays(Batch(rule, calls, sources, before, moved), copies)

    # ---------------------------------------------------------------------------------------------------- sources

    def _parts(self, bucket: Bucket) -> Iterator[list[BatchCall]]:
        """Splits a bucket by the sources of its operands, each part in the order of its source."""
        parts: dict[Any, list[tuple[Any, BatchCall]]] = {}
        seen: dict[Any, int] = {}
        for position, call in enumerate(bucket.calls):
            origins = [None if c is None else self._origin(c) for c in call.columns]
            known = [i for i, origin in enumerate(origins) if origin is not None]
            sources = tuple(None if origin is None else id(origin[0]) for origin in origins)
            first = call.columns[known[0] if known else 0]
            # A second call that reads the same piece goes into another batch than the first.
            turn = (sources, first) if known or not bucket.rule.is_pointwise else None
            seen[turn] = seen.get(turn, -1) + 1
            order = origins[known[0]][1] if known else (position,)  # type: ignore[index]
            parts.setdefault((sources, seen[turn] if turn else 0), []).append((order, call))
        for part in parts.values():
            part.sort(key=lambda item: item[0])
            yield [call for _, call in part]

    def _origin(self, node: Node) -> tuple[Any, tuple[int, ...]] | None:
        """The batch or the tensor that a value is a part of, and where it begins there."""
        if node in self.member_of:
            batch, index = self.member_of[node]
            return batch, (index,)
        found = source_view(self.graph, node) if node.op not in _GIVEN else None
        if found is None or not found.nodes or not all(isinstance(s, int) for s in found.index_map.starts):
            return None
        return found.index_map.source, found.index_map.starts

    def _source(self, column: Sequence[Node | None], before: Node) -> Source | None:
        """The source of one operand, for a batch before a node."""
        operands = tuple(node for node in column if node is not None)
        if not operands:
            return None
        if all(node is operands[0] for node in operands):
            return Shared(operands[0])
        runs = runs_of(operands, self.member_of)
        if len(runs) == 1 and isinstance(runs[0], BatchRun):
            return runs[0]
        if not any(node in self.member_of or node.op in _GIVEN for node in operands):
            found = stacked(self.graph, operands, 0, before=max(before, max(operands).next))
            if found is not None and found.is_view:
                return View(found)
        return Copy(operands, self.context.packs and all(map(is_static, operands)))

    def _feed_one(self, calls: list[BatchCall]) -> bool:
        """Whether all results go into one cat or stack, and nowhere else."""
        users = {user for call in calls for user in call.node.users}
        return len(users) == 1 and self.graph.is_call(next(iter(users)), aten.cat, aten.stack)

    # ------------------------------------------------------------------------------------------------ whether it pays

    def _if_it_pays(self, batch: Batch, copies: list[Copy]) -> Batch | No:
        calls, result = batch.calls, batch.calls[0].result
        device = device_of(result.device, self.context.options)
        trains = requires_grad(result) and not self.context.is_inference
        saves = batch.rule.saves(calls, device, trains)
        if batch.rule.is_pointwise and copies and device.fuses:
            return No("each of them fuses into the cat or stack that takes their results")
        size = sum(len(copy.operands) * bytes_of(copy.operands[0]) for copy in copies if not copy.is_packed)
        costs = copy_time(size, device) if size else 0.0
        leaving = sum(self.graph.effects.leaves(call.node) for call in calls)
        one = bytes_of(calls[0].node)  # they are alike
        costs += leaving * copy_time(one, device)
        if trains and (leaving or not self._go_on(calls)):
            costs += copy_time(len(calls) * one, device)
        return pays(f"a batch of {len(calls)}", saves, costs) and batch

    def _go_on(self, calls: list[BatchCall]) -> bool:
        """Whether the results are likely to stay a batch: all go into the same operator, or into one cat or stack."""
        return len({user.target for call in calls for user in call.node.users}) <= 2

    # ------------------------------------------------------------------------------------------------------ joins

    def joins(self) -> list[Join]:
        """The cats and stacks that take consecutive results of batches."""
        nodes = [
            node for key in (aten.cat, aten.stack) for node in self.graph.calls(key) if node not in self.placing.moved
        ]
        found = (self._join(node) for node in nodes if any(n in self.member_of for n in node.all_input_nodes))
        return [join for join in found if join is not None]

    def _join(self, node: Node) -> Join | None:
        bound, result = self.graph.bind(node), tensor_of(node)
        if not isinstance(bound, Bound) or result is None or not is_row_major(result):
            return None
        operands, dim = bound["tensors"], bound["dim"]
        if not isinstance(operands, (list, tuple)) or not isinstance(dim, int):
            return None
        is_stack = bound.packet is aten.stack
        runs = runs_of(operands, self.member_of)
        if len(runs) == len(operands) or (is_stack and len(runs) > 1):
            return None
        return Join(node, dim % result.dim(), is_stack, runs)


def runs_of(operands: Sequence[Node], member_of: Mapping[Node, tuple[Batch, int]]) -> list[Node | BatchRun]:
    """Replaces operands that are consecutive results of one batch by a run of it."""
    runs: list[Node | BatchRun] = []
    for node in operands:
        here, last = member_of.get(node), runs[-1] if runs else None
        if (
            here is not None
            and isinstance(last, BatchRun)
            and last.batch is here[0]
            and last.start + last.size == here[1]
        ):
            runs[-1] = BatchRun(last.batch, last.start, last.size + 1)
        else:
            runs.append(node if here is None else BatchRun(*here, 1))
    return [run.batch.calls[run.start].node if isinstance(run, BatchRun) and run.size == 1 else run for run in runs]
