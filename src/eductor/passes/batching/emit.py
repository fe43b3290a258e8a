"""Emits planned batches: stacks, batched calls, and the results that are still read one by one."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from eductor.graph import GraphView, Rewriter, is_row_major, known_equal, tensor_of
from eductor.graph.reading.static import pack
from eductor.passes.batching.limits import own_copy
from eductor.passes.batching.plan import Batch, BatchRun, Join, Planner, Shared, Source, View
from eductor.passes.batching.rule import Column, Emission

aten = torch.ops.aten


@dataclass(slots=True)
class Emitter:
    """Emits the batches of a planner, then replaces or erases the calls that they cover."""

    graph: GraphView
    rewrite: Rewriter
    planner: Planner
    replacements: dict[Node, Node] = field(default_factory=dict)
    """The nodes that replace calls and joins."""

    def emit(self) -> None:
        joins = self.planner.joins()
        absorbed = {join.node: join for join in joins}
        for batch in self.planner.batches:
            with self.rewrite.rule(batch.rule.name):
                self._emit(batch, absorbed)
        for join in joins:
            self.replacements[join.node] = self._join(join)
        old = [*self.planner.member_of, *absorbed]
        for node in sorted(old, reverse=True):
            new = self.replacements.get(node)
            if new is None:
                self.rewrite.erase(node)
            else:
                self.rewrite.replace(node, new)

    def _emit(self, batch: Batch, joins: dict[Node, Join]) -> None:
        leader = batch.calls[0]
        for node in batch.moved:
            self.rewrite.move(node, before=batch.before)
        emission = Emission(self.rewrite, batch.before, leader.node)
        columns = [None if source is None else self._column(emission, source) for source in batch.sources]
        batch.result = batch.rule.emit(emission, leader, columns, len(batch.calls))
        wanted = [i for i, call in enumerate(batch.calls) if self._is_read(call.node, joins)]
        if wanted:
            self._split(batch, wanted, emission)

    def _split(self, batch: Batch, wanted: Iterable[int], emission: Emission) -> None:
        """Splits off the results that are read one by one, in their old layout; those that escape are copied."""
        effects, result = self.graph.effects, batch.result
        assert result is not None
        value = tensor_of(result)
        is_view = bool(effects.of(batch.calls[0].node).shares)
        if not is_view and (value is None or not is_row_major(value)):
            result = own_copy(self.rewrite, result, before=batch.before, like=emission.like)
        pieces = emission(aten.unbind, result, 0)
        for i in wanted:
            node = batch.calls[i].node
            piece = self.rewrite.insert(operator.getitem, pieces, i, before=batch.before, like=node)
            if effects.leaves(node):
                piece = own_copy(self.rewrite, piece, before=batch.before, like=node)
            self.replacements[node] = piece

    def _is_read(self, node: Node, joins: dict[Node, Join]) -> bool:
        """Whether a result is still read individually: by a node outside batches, or by a batch that takes no run of it."""
        return any(not self._is_absorbed(node, user, joins) for user in node.users)

    def _is_absorbed(self, node: Node, user: Node, joins: dict[Node, Join]) -> bool:
        if user in joins:
            return node not in joins[user].operands
        if user not in self.planner.member_of:
            return False
        batch, index = self.planner.member_of[user]
        columns = zip(batch.calls[index].columns, batch.sources, strict=True)
        return all(isinstance(source, BatchRun) for column, source in columns if column is node)

    def _column(self, emission: Emission, source: Source) -> Column:
        if isinstance(source, Shared):
            return Column(self._current(source.node), is_shared=True)
        if isinstance(source, BatchRun):
            return Column(self._run(emission, source), is_shared=False)
        if isinstance(source, View):
            node = source.plan.emit(self.rewrite, before=emission.before, like=emission.like)
            return Column(node, is_shared=False)
        stack = emission(aten.stack, [self._current(node) for node in source.operands], 0)
        if source.is_packed:
            pack(stack)
        return Column(stack, is_shared=False)

    def _run(self, emission: Emission, run: BatchRun) -> Node:
        result = run.batch.result
        assert result is not None
        if run.size == len(run.batch.calls):
            return result
        return emission(aten.narrow, result, 0, run.start, run.size)

    def _current(self, node: Node) -> Node:
        return self.replacements.get(node, node)

    def _join(self, join: Join) -> Node:
        """A cat of fewer operands; for a single run, the batch in the layout of the cat, in memory of its own."""
        emission = Emission(self.rewrite, join.node, join.node)
        operands = [
            self._flat(emission, operand, join) if isinstance(operand, BatchRun) else self._current(operand)
            for operand in join.operands
        ]
        if len(operands) > 1:
            return emission(aten.cat, operands, join.dim)
        alone = join.operands[0]
        if join.is_stack or not isinstance(alone, BatchRun) or not self._is_copied(alone, operands[0], join.dim):
            return own_copy(self.rewrite, operands[0], before=join.node, like=join.node)
        return operands[0]

    def _is_copied(self, run: BatchRun, flat: Node, dim: int) -> bool:
        """Whether the flattened results of a batch are a row-major copy of it."""
        batch, value = run.batch.result, tensor_of(flat)
        if batch is None or value is None or not is_row_major(value):
            return False
        was_row_major = (made := tensor_of(batch)) is not None and is_row_major(made)
        return was_row_major and not all(known_equal(size, 1) for size in value.shape[:dim])

    def _flat(self, emission: Emission, run: BatchRun, join: Join) -> Node:
        """The results of a run concatenated: the batch dimension is moved to the cat's, and merged with it."""
        node = self._run(emission, run)
        if join.dim:
            node = emission(aten.movedim, node, 0, join.dim)
        return node if join.is_stack else emission(aten.flatten, node, join.dim, join.dim + 1)
