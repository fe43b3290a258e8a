"""One round of batching: plans all batches of a graph, then emits them."""

from __future__ import annotations

from collections.abc import Sequence

from eductor.errors import UnknownName
from eductor.graph import GraphView, Rewriter
from eductor.passes.batching.buckets import buckets
from eductor.passes.batching.emit import Emitter
from eductor.passes.batching.plan import Planner
from eductor.passes.batching.rule import BatchRule
from eductor.pipeline.base import Context


def chosen(rules: Sequence[BatchRule], without: Sequence[str], *others: str) -> list[BatchRule]:
    """The rules that are not excluded by name; `others` are further valid names."""
    names = [*(rule.name for rule in rules), *others]
    unknown = next((name for name in without if name not in names), None)
    if unknown is not None:
        raise UnknownName("rule of group_batch_fusion_passes", unknown, names)
    return [rule for rule in rules if rule.name not in without]


def make_batches(graph: GraphView, rewrite: Rewriter, context: Context, rules: Sequence[BatchRule]) -> bool:
    """Plans and emits all batches of a graph; returns whether there were any."""
    planner = Planner(graph, rewrite, context)
    for bucket in buckets(graph, rewrite, rules):
        planner.consider(bucket)
    leaders = [batch.calls[0].node for batch in planner.batches[:1]]
    for _ in graph.candidates(leaders):
        Emitter(graph, rewrite, planner).emit()
    return bool(leaders)
