"""Fuses all linear compressions of concatenated embeddings into one matmul with their weights concatenated."""

# ruff: noqa: N802, N999 - the documented name

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor.graph import GraphView, No, Rewriter, requires_grad, value_of
from eductor.graph.reading.static import is_static, pack
from eductor.graph.view import key_of
from eductor.passes.functional.layout_safety import contiguous_like, may_change_strides
from eductor.passes.pre_grad.compressions import LCE_OPERATORS, Compress, insert_product, read_lce, undisturbed
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten
JOINS = (aten.cat, aten.stack)


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def use_matmul_fuse_lce_replace_first_LCE(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Fuses all linear compressions of concatenated embeddings into one matmul with their weights concatenated.

    It is off by default, as `use_matmul_lce_replace_normal_LCE` is, which rewrites compressions of anything else.

    It pays where several compressions read the same embeddings, which are then read once.
    """
    if not any(graph.calls(key_of(op)) for op in JOINS):
        return
    compressions = _by_source(graph, rewrite)
    for joined in graph.find(*JOINS):
        members = compressions.pop(joined, [])
        while members:
            alike = [m for m in members if _kind(m) == _kind(members[0])]
            members = [m for m in members if m not in alike]
            group = _legal(graph, rewrite, alike)
            if group:
                _replace(rewrite, group, context)


def _by_source(graph: GraphView, rewrite: Rewriter) -> dict[Node, list[Compress]]:
    """The compressions of concatenated embeddings, by their input, each list in the order of the graph."""
    found: dict[Node, list[Compress]] = {}
    for node in sorted({n for op in LCE_OPERATORS for n in graph.calls(key_of(op))}):
        compress = read_lce(graph, node)
        if isinstance(compress, No):
            rewrite.reject(compress, node)
        elif compress is not None and not graph.is_call(compress.x, *JOINS):
            rewrite.reject(f"{compress.x.name} is not a cat or a stack of embeddings", node)
        elif compress is not None and type(_height(compress)) is not int:
            rewrite.reject("the size of its weight is symbolic", node)
        elif compress is not None:
            found.setdefault(compress.x, []).append(compress)
    return found


def _kind(compress: Compress) -> tuple[bool, bool, bool]:
    """The properties that members of a group share."""
    return compress.bias is None, compress.relu, requires_grad(value_of(compress.weight))


def _legal(graph: GraphView, rewrite: Rewriter, group: list[Compress]) -> list[Compress]:
    """The members of a group that may be computed together, at the position of its first one."""
    whole, start = sum(map(_height, group)), 0
    for member in group:
        verdict = _may_move_to_first(graph, group[0], member) and _may_be_part(graph, member, start, whole)
        if not verdict:
            rewrite.reject(verdict, member.output)
            return _legal(graph, rewrite, [m for m in group if m is not member])
        start += _height(member)
    return group


def _height(member: Compress) -> int:
    """The number of outputs of a compression."""
    height: int = value_of(member.weight).shape[0]
    return height


def _may_move_to_first(graph: GraphView, first: Compress, member: Compress) -> Literal[True] | No:
    """Whether a member can be computed at the position of the first one."""
    late = next((n for n in member.operands if not n < first.output), None)
    if late is not None:
        reason = f"{late.name} is defined only after {first.output.name}, where all would be computed"
        return No(reason, late, first.output)
    return undisturbed(graph, first.start or first.output, member.output, member.operands)


def _may_be_part(graph: GraphView, member: Compress, start: int, whole: int) -> Literal[True] | No:
    """Whether the result of a member can be a slice of the fused result."""
    tensor = value_of(member.output)
    fused = contiguous_like(tensor, (*tensor.shape[:-2], whole, tensor.shape[-1]))
    return may_change_strides(graph, member.output, fused.narrow(-2, start, _height(member)))


def _replace(rewrite: Rewriter, group: list[Compress], context: Context) -> None:
    first = group[0]
    weight = _stacked(rewrite, [m.weight for m in group], first.output, context)
    biases = [m.bias for m in group if m.bias is not None]
    bias = _stacked(rewrite, biases, first.output, context) if biases else None
    result = insert_product(rewrite, weight, first.x, bias, before=first.output)
    if first.relu:
        result = rewrite.insert(aten.relu, result, before=first.output)
    if len(group) == 1:
        rewrite.replace(first.output, result)
        return
    start = 0
    for member in group:
        rewrite.replace(member.output, aten.narrow, result, -2, start, _height(member))
        start += _height(member)


def _stacked(rewrite: Rewriter, parts: list[Node], before: Node, context: Context) -> Node:
    if len(parts) == 1:
        return parts[0]
    stacked = rewrite.insert(aten.cat, parts, 0, before=before)
    if context.packs and all(map(is_static, parts)):
        pack(stacked)
    return stacked


@use_matmul_fuse_lce_replace_first_LCE.example
def two_compresses_of_joined_embeddings(
    a: torch.Tensor = f32(4, 3, 6),
    b: torch.Tensor = f32(4, 5, 6),
    v: torch.Tensor = f32(3, 8),
    w: torch.Tensor = f32(2, 8),
) -> torch.Tensor:
    x = torch.cat([a, b], 1)
    return torch.cat([F.linear(x.mT, v).mT.flatten(1), F.linear(x.mT, w).mT.flatten(1)], 1)


@use_matmul_fuse_lce_replace_first_LCE.example
def one_compress_of_stacked_embeddings(
    a: torch.Tensor = f32(4, 6), b: torch.Tensor = f32(4, 6), w: torch.Tensor = f32(3, 2), c: torch.Tensor = f32(3)
) -> torch.Tensor:
    return F.linear(torch.stack([a, b], 1).permute(0, 2, 1), w, c).permute(0, 2, 1).sum(2)


@use_matmul_fuse_lce_replace_first_LCE.refuses("is not a cat or a stack of embeddings")
def compress_of_something_else(x: torch.Tensor = f32(4, 8, 6), w: torch.Tensor = f32(3, 8)) -> torch.Tensor:
    x = torch.cat([x, x], 1).narrow(1, 0, 8)
    return F.linear(x.mT, w).mT.flatten(1)


@use_matmul_fuse_lce_replace_first_LCE.refuses("writes memory")
def result_that_is_written(
    a: torch.Tensor = f32(4, 3, 6), b: torch.Tensor = f32(4, 5, 6), w: torch.Tensor = f32(3, 8)
) -> torch.Tensor:
    return F.linear(torch.cat([a, b], 1).mT, w).mT.mul_(2).flatten(1)
