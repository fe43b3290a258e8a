"""Fuses the operands of a cat or stack that are neighbouring views of one source."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_equal, requires_grad, tensor_of, value_of
from eductor.graph.effects.gradient_order import another_order, may_be_used_elsewhere, same_sum, uses
from eductor.pipeline.base import Context
from eductor.views.checking import check_equal
from eductor.views.index_map import IndexMap, joined
from eductor.views.source_views import SourceView, source_view, view_call
from eductor.views.view_plan import ViewPlan, ViewStep, plan_views

aten = torch.ops.aten


_NOTHING_TO_MERGE = No("no two neighbours among its operands are parts of one tensor")


@dataclass(frozen=True, slots=True)
class OperandRun:
    """Neighbouring operands, and the plan of views that reads them as one value, if there is one."""

    operands: tuple[Node, ...]
    views: tuple[SourceView, ...]
    plan: ViewPlan | None = None

    @property
    def nodes(self) -> list[Node]:
        """The views between the source and the operands, each once."""
        return list(dict.fromkeys(node for found in self.views for node in found.nodes))

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset().union(*(found.kinds for found in self.views))

    @property
    def steps(self) -> tuple[ViewStep, ...]:
        return self.plan.steps if self.plan is not None else ()


@dataclass(frozen=True, slots=True)
class ConcatNest:
    """A cat or stack, with its operands grouped into runs that are views of one source."""

    root: Node
    dim: int
    is_stack: bool
    runs: tuple[OperandRun, ...]

    @property
    def merged(self) -> list[OperandRun]:
        """The runs that are read as one value."""
        return [run for run in self.runs if run.plan is not None]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of views between the sources and the operands that are merged."""
        return frozenset().union(*(run.kinds for run in self.merged))

    @property
    def is_whole(self) -> bool:
        """Whether all operands together are one source, in its own shape."""
        return self.is_one and not self.runs[0].steps

    @property
    def is_slice(self) -> bool:
        """Whether all operands together are a slice of one source, or all of it, with its dimensions in order."""
        return self.is_one and {step.op for step in self.runs[0].steps} <= {aten.narrow, aten.slice}

    @property
    def is_one(self) -> bool:
        """Whether all operands together are one view of one source."""
        return len(self.runs) == 1 and self.runs[0].plan is not None


def concat_nest(graph: GraphView, root: Node) -> ConcatNest | No:
    """A cat or stack as a nest; No if nothing in it can be merged."""
    return graph.derived_of(root, _read)


def _read(graph: GraphView, root: Node) -> ConcatNest | No:
    bound = graph.bind(root)
    if not isinstance(bound, Bound):
        return bound
    tensor = tensor_of(root)
    operands = bound["tensors"]
    if tensor is None or not isinstance(operands, (list, tuple)) or not isinstance(bound["dim"], int):
        return No("its operands are not a list of known tensors")
    is_stack = bound.packet is aten.stack
    if not tensor.dim() or not all(_rank(x) == tensor.dim() - is_stack for x in operands):
        return No("its operands differ in rank")
    dim = bound["dim"] % tensor.dim()
    if not any(view_call(graph, a) and view_call(graph, b) for a, b in itertools.pairwise(operands)):
        return _NOTHING_TO_MERGE
    operands = operands if is_stack else _with_elements(operands, tensor)
    views = [source_view(graph, x) for x in operands]
    found = [t for t in views if t is not None]
    if len(found) < len(operands):
        return No("an operand is not a plain tensor, or is empty")
    nest = ConcatNest(root, dim, is_stack, _runs(operands, found, dim, is_stack))
    return nest if nest.merged else _NOTHING_TO_MERGE


def stacked(graph: GraphView, operands: Sequence[Node], dim: int, *, before: Node) -> ViewPlan | None:
    """The plan of views that is a stack of these operands, readable in front of a node; None if there is none."""
    return _as_plan(graph, operands, dim, before, is_stack=True)


def concatenated(graph: GraphView, operands: Sequence[Node], dim: int, *, before: Node) -> ViewPlan | None:
    """The plan of views that is a cat of these operands, readable in front of a node; None if there is none."""
    return _as_plan(graph, operands, dim, before, is_stack=False)


def _as_plan(graph: GraphView, operands: Sequence[Node], dim: int, before: Node, *, is_stack: bool) -> ViewPlan | None:
    views = [source_view(graph, x) for x in operands]
    found = [t for t in views if t is not None]
    if len(found) < len(operands) or len({len(t.index_map.dims) for t in found}) != 1:
        return None
    rank = len(found[0].index_map.dims) + is_stack
    runs = _runs(operands, found, dim % rank, is_stack) if rank else ()
    if len(runs) != 1 or runs[0].plan is None or not _may_read(graph, runs[0], before):
        return None
    return runs[0].plan


def _runs(operands: Sequence[Node], views: Sequence[SourceView], dim: int, is_stack: bool) -> tuple[OperandRun, ...]:
    maps = [found.index_map.unsqueeze(dim) if is_stack else found.index_map for found in views]
    runs: list[OperandRun] = []
    i = 0
    for index_map, count in joined(maps, dim):
        run = OperandRun(tuple(operands[i : i + count]), tuple(views[i : i + count]))
        made = _plan(index_map, run) if count > 1 else None
        if made is not None:
            runs.append(OperandRun(run.operands, run.views, made))
        else:
            runs += [OperandRun((x,), (t,)) for x, t in zip(run.operands, run.views, strict=True)]
        i += count
    # Beside other operands, the cat copies a run anyway: it must not be copied twice.
    if len(runs) > 1:
        return tuple(part for run in runs for part in _worth_it(run))
    return tuple(runs)


def _plan(index_map: IndexMap, run: OperandRun) -> ViewPlan | None:
    made = plan_views(index_map)
    return made if made is not None and len(made.steps) <= len(run.operands) + 1 else None


def _worth_it(run: OperandRun) -> list[OperandRun]:
    if run.plan is None or (run.plan.is_view and len(run.plan.steps) <= len(run.operands)):
        return [run]
    return [OperandRun((x,), (t,)) for x, t in zip(run.operands, run.views, strict=True)]


def _with_elements(operands: Sequence[Node], result: torch.Tensor) -> list[Node]:
    """The operands of a cat without the empty ones that affect neither its dtype nor whether it requires a gradient."""
    kept = [x for x in operands if value_of(x).dtype != result.dtype or not _is_empty(value_of(x))]
    return kept if any(requires_grad(value_of(x)) for x in kept) == result.requires_grad else list(operands)


def _is_empty(value: torch.Tensor) -> bool:
    return any(known_equal(size, 0) for size in value.shape)


def _rank(x: Any) -> int | None:
    tensor = tensor_of(x)
    return tensor.dim() if tensor is not None else None


# --------------------------------------------------------------------------------------------------------- rewriting


def fuse_concat(graph: GraphView, rewrite: Rewriter, nest: ConcatNest, context: Context) -> None:
    """Replaces the operands of each merged run by its views, and the nest where one run has all operands."""
    for run in nest.merged:
        verdict = _may_fuse(graph, run, nest.root)
        if not verdict:
            rewrite.reject(verdict, nest.root)
            return
    if not is_row_major(value_of(nest.root)):
        rewrite.reject("its result is not row-major, which a view would not preserve", nest.root)
        return
    new = _as_one(graph, rewrite, nest) if nest.is_one else _as_cat(rewrite, nest)
    if context.options.debug:
        check_equal(nest.root, new, {found.index_map.source for run in nest.runs for found in run.views})
    rewrite.replace(nest.root, new)


def _as_one(graph: GraphView, rewrite: Rewriter, nest: ConcatNest) -> Node:
    """The views, and a copy where the nest must own its memory or has another layout."""
    root, made = nest.root, nest.runs[0].plan
    assert made is not None
    reads_memory = bool(graph.calls(aten.as_strided))  # it reads the storage past the shape of a tensor
    may_share = made.copies or bool(not reads_memory and graph.effects.may_alias(root, made.index_map.source))
    value = made.emit(rewrite, before=root, like=root)
    if may_share and _same_layout(value_of(value), value_of(root), with_offset=graph.effects.leaves(root)):
        return value
    return rewrite.insert(aten.clone, value, before=root, like=root, memory_format=torch.contiguous_format)


def _same_layout(a: torch.Tensor, b: torch.Tensor, *, with_offset: bool) -> bool:
    same = known_equal(tuple(a.stride()), tuple(b.stride()))
    return same and (not with_offset or known_equal(a.storage_offset(), b.storage_offset()))


def _as_cat(rewrite: Rewriter, nest: ConcatNest) -> Node:
    operands: list[Node] = []
    for run in nest.runs:
        if run.plan is not None:
            operands.append(run.plan.emit(rewrite, before=nest.root, like=nest.root))
        elif nest.is_stack:
            operands.append(rewrite.insert(aten.unsqueeze, run.operands[0], nest.dim, before=nest.root, like=nest.root))
        else:
            operands.append(run.operands[0])
    made = rewrite.insert(aten.cat, operands, nest.dim, before=nest.root, like=nest.root)
    if is_row_major(value_of(made)):
        return made
    return rewrite.insert(aten.clone, made, before=nest.root, like=nest.root, memory_format=torch.contiguous_format)


def _may_fuse(graph: GraphView, run: OperandRun, root: Node) -> Literal[True] | No:
    verdict = _may_read(graph, run, root)
    return _same_sum(run, root) if verdict else verdict


def _same_sum(run: OperandRun, root: Node) -> Literal[True] | No:
    """Whether the source gets the same gradient from the root as through the views of a run."""
    assert run.plan is not None
    source = run.plan.index_map.source
    if not requires_grad(value_of(source)):
        return True
    if any(step.op is aten.permute for step in run.steps):
        # The backward of views and copies gives a row-major gradient, that of a permutation a permuted one.
        return No(f"the gradient of {source.name} would have other strides, and be summed in another order")
    between = {*run.nodes}
    others = uses(source, but=between)
    for found in run.views:
        parts = [use for node in found.nodes for use in _uses_of_the_same(node, found.nodes, between)]
        if len(parts) > 1 and len(parts) + len(others) + may_be_used_elsewhere(source) > 2:
            return another_order(source)
    return same_sum(source, others, min(run.nodes), root)


def _uses_of_the_same(node: Node, path: tuple[Node, ...], between: set[Node]) -> list[Node]:
    """The uses of a view on a path; of a call with several results, those of the result on the path."""
    if tensor_of(node) is not None:
        return uses(node, but=between)
    results, following = value_of(node), path[path.index(node) + 1]
    same = [n for n in node.users if n not in between and _result(results, n) is _result(results, following)]
    return [use for n in same for use in uses(n)]


def _result(results: Any, node: Node) -> Any:
    return results[node.args[1]] if node.target is operator.getitem else None


def _may_read(graph: GraphView, run: OperandRun, before: Node) -> Literal[True] | No:
    """Whether the source may be read in front of a node, not through the views of a run."""
    assert run.plan is not None
    first = min(run.nodes)
    verdict = graph.effects.same_region((before, *run.nodes))
    return graph.effects.unwritten((run.plan.index_map.source, *run.nodes), first, before) if verdict else verdict
