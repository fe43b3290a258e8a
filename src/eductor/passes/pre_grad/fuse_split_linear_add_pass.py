"""Fuses a sum of linears, each of one piece of a split, into one linear of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor.cost import Device, Gemm, bytes_of, copy_time, device_of, gemm_of, pays
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_equal, requires_grad, tensor_of, value_of
from eductor.graph.reading.static import is_static, pack
from eductor.passes.batching.products import gain
from eductor.passes.batching.shared_input import kind_of
from eductor.passes.pre_grad.compressions import rank_of
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import ViewPlan, concatenated, source_view

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates")
def fuse_split_linear_add_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Fuses a sum of linears, each of one piece of a split, into one linear of the whole.

    `linear(a, V) + linear(b, W)` of neighbours `a, b` along the last dimension is a linear of both with the weights
    concatenated, and the sum of the biases. Other addends stay.

    It pays where the partial results, which are no longer written, cost more than concatenating the weights.
    """
    for root in graph.find(aten.add):
        if any(_is_sum(graph, user) and len(root.users) == 1 for user in root.users):
            continue  # a part of a larger sum, which is read as a whole
        addends = list(_addends(graph, root, is_root=True))
        for run in _runs(graph, [a for a in addends if isinstance(a, Linear)]):
            fused = _may_fuse(graph, root, run) and _fuse(graph, rewrite, context, root, addends, run)
            if fused:
                break
            rewrite.reject(fused, root, *(linear.node for linear in run))


@dataclass(frozen=True, slots=True)
class Linear:
    """An addend that is a linear without other users."""

    node: Node
    x: Node
    weight: Node
    bias: Node | None


def _is_sum(graph: GraphView, node: Node) -> bool:
    """Whether a node adds two values as they are."""
    bound = graph.bind(node)
    return isinstance(bound, Bound) and bound.op is aten.add.Tensor and bound["alpha"] == 1


def _addends(graph: GraphView, node: Any, *, is_root: bool = False) -> Iterator[Any]:
    """The addends of a tree of sums, from left to right; a sum that has other users or broadcasts is one addend."""
    bound = graph.bind(node) if isinstance(node, Node) else None
    if not isinstance(bound, Bound) or (len(node.users) > 1 and not is_root):
        yield node
    elif _is_sum(graph, node):
        for part in (bound["self"], bound["other"]):
            yield from _addends(graph, part) if _is_like(part, node) else [part]
    elif bound.packet is aten.linear and not is_root:
        yield Linear(node, bound["input"], bound["weight"], bound["bias"])
    else:
        yield node


def _is_like(part: Any, whole: Node) -> bool:
    a, b = tensor_of(part), tensor_of(whole)
    return a is not None and b is not None and a.dtype == b.dtype and known_equal(list(a.shape), list(b.shape))


def _runs(graph: GraphView, linears: Sequence[Linear]) -> Iterator[list[Linear]]:
    """Linears whose inputs are neighbours in one tensor, in its order."""
    sources: dict[Node, list[tuple[tuple[int, ...], Linear]]] = {}
    for linear in linears:
        found = source_view(graph, linear.x)
        if found is not None and found.nodes and all(isinstance(start, int) for start in found.index_map.starts):
            sources.setdefault(found.index_map.source, []).append((found.index_map.starts, linear))
    for parts in sources.values():
        parts.sort(key=lambda part: part[0])
        if len(parts) > 1:
            yield [linear for _, linear in parts]


def _may_fuse(graph: GraphView, root: Node, run: Sequence[Linear]) -> Literal[True] | No:
    """Whether a sum may be computed as one linear."""
    effects, result = graph.effects, tensor_of(root)
    if not (verdict := effects.same_kind([root, *(linear.node for linear in run)])):
        return verdict
    if result is None or not is_row_major(result):
        return No("its result is not row-major")
    first = min(linear.node for linear in run)
    given = [n for linear in run for n in (linear.weight, linear.bias) if n is not None]
    if not (verdict := effects.unwritten(given, first, root)):
        return verdict
    if len({kind_of(linear.weight) for linear in run}) > 1:
        return No("the weights differ in dtype, device or requires_grad")
    matrices = all(rank_of(linear.weight) == 2 and (linear.bias is None or rank_of(linear.bias) == 1) for linear in run)
    return True if matrices else No("a weight is not a matrix, or a bias is not a vector")


def _fuse(
    graph: GraphView, rewrite: Rewriter, context: Context, root: Node, addends: Sequence[Any], run: Sequence[Linear]
) -> Literal[True] | No:
    """Replaces a run by one linear; No if it cannot or does not pay."""
    whole = concatenated(graph, [linear.x for linear in run], -1, before=root)
    if whole is None or not whole.is_view:
        return No("the inputs of the linears are not neighbours in one tensor that can be read here")
    given = [n for linear in run for n in (linear.weight, linear.bias) if n is not None]
    is_packed = context.packs and all(map(is_static, given))
    if not (verdict := _pays(context, root, run, is_packed)):
        return verdict
    fused = _emit(rewrite, root, run, whole, is_packed)
    for addend in addends:
        if addend not in run:
            addend = addend.node if isinstance(addend, Linear) else addend
            fused = rewrite.insert(aten.add, fused, addend, before=root, like=root)
    rewrite.replace(root, fused)
    return True


def _pays(context: Context, root: Node, run: Sequence[Linear], is_packed: bool) -> Literal[True] | No:
    """Whether one linear in place of a run pays."""
    result: torch.Tensor = value_of(root)
    device = device_of(result.device, context.options)
    trains = requires_grad(result) and not context.is_inference
    costs = 0.0 if is_packed else copy_time(sum(bytes_of(linear.weight) for linear in run), device)
    return pays(f"one linear for {len(run)}", _saved(run, device, trains), costs)


def _saved(run: Sequence[Linear], device: Device, trains: bool) -> float:
    gemms = [gemm for gemm in (gemm_of(linear.node) for linear in run) if gemm is not None]
    if len(gemms) < len(run):
        return 0.0
    whole = Gemm(gemms[0].rows, gemms[0].columns, sum(gemm.inner for gemm in gemms), gemms[0].dtype)
    sums = 1 if device.fuses else len(run) - 1
    return (
        gain(gemms, whole, device, trains)
        + sums * device.launch
        + (len(run) - 1) * bytes_of(run[0].node) / device.bandwidth
    )


def _emit(rewrite: Rewriter, root: Node, run: Sequence[Linear], whole: ViewPlan, is_packed: bool) -> Node:
    x = whole.emit(rewrite, before=root, like=root)
    weight = rewrite.insert(aten.cat, [linear.weight for linear in run], 1, before=root, like=root)
    biases = [linear.bias for linear in run if linear.bias is not None]
    bias = biases[0] if biases else None
    for other in biases[1:]:
        bias = rewrite.insert(aten.add, bias, other, before=root, like=root)
    if is_packed:
        pack(weight)
    if is_packed and bias is not None and len(biases) > 1:
        pack(bias)
    return rewrite.insert(aten.linear, x, weight, bias, before=root, like=root)


@fuse_split_linear_add_pass.example
def sum_of_two_pieces(
    x: torch.Tensor = f32(64, 24), v: torch.Tensor = f32(8, 8), w: torch.Tensor = f32(8, 16), b: torch.Tensor = f32(8)
) -> torch.Tensor:
    left, right = x.split([8, 16], -1)
    return F.linear(left, v, b) + F.linear(right, w, b)


@fuse_split_linear_add_pass.example
def other_addends_stay(
    x: torch.Tensor = f32(64, 24), w: torch.Tensor = f32(3, 8, 8), y: torch.Tensor = f32(64, 8)
) -> torch.Tensor:
    a, b, c = x.chunk(3, 1)
    return F.linear(c, w[2]) + (y + F.linear(a, w[0])) + F.linear(b, w[1])


@fuse_split_linear_add_pass.refuses("not neighbours")
def pieces_with_a_gap(x: torch.Tensor = f32(64, 24), w: torch.Tensor = f32(8, 8)) -> torch.Tensor:
    a, _, c = x.chunk(3, 1)
    return F.linear(a, w) + F.linear(c, 2 * w)


@fuse_split_linear_add_pass.refuses("may write what is read")
def weight_written_between(x: torch.Tensor = f32(64, 16), w: torch.Tensor = f32(8, 8)) -> torch.Tensor:
    a, b = x.chunk(2, 1)
    v = w + 1
    first = F.linear(a, v)
    v.mul_(2)
    return first + F.linear(b, v)


@fuse_split_linear_add_pass.refuses("costs")
def weights_larger_than_all_else(x: torch.Tensor = f32(1, 1024), w: torch.Tensor = f32(256, 512)) -> torch.Tensor:
    a, b = x.chunk(2, 1)
    return F.linear(a, w) + F.linear(b, 2 * w)
