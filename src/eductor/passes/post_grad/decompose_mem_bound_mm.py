"""Decomposes thin matrix products into sums of elementwise products, which fuse with their neighbors."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.cost import device_of
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_equal, tensor_of, value_of
from eductor.passes.functional.products import FACTORS, are_alike, is_expandable
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten
prims = torch.ops.prims


@graph_pass(stage="post_grad", numerics="reassociates", on=False)
def decompose_mem_bound_mm(
    graph: GraphView,
    rewrite: Rewriter,
    context: Context,
    *,
    many: int = 10240,
    few: int = 32,
    longest_row: int = 256,
    longest_column: int = 2048,
) -> None:
    """Decomposes thin matrix products into sums of elementwise products, which fuse with their neighbors.

    On an accelerator: products with at least `many` rows, or a batch of at least `many`, whose other sizes are below
    `few`; in a batch, two of them. On the CPU: one row times a matrix of at most `longest_row` rows and columns, or at
    most `longest_column` where the columns are contiguous, as the transposed weights of a linear. Half precisions are
    summed in float32. Sizes have to be known.

    It pays on an engine that fuses, where such products are bound by memory.
    """
    for node in graph.find(*FACTORS):
        bound, result = graph.bind(node), tensor_of(node)
        if not isinstance(bound, Bound) or result is None:
            rewrite.reject("its arguments or its fake value are not known", node)
            continue
        factors = [bound[name] for name in FACTORS[bound.packet]]
        longest = longest_column if known_equal(value_of(factors[1]).stride(-2), 1) else longest_row
        verdict = _may_decompose(bound, node, factors, context) and _is_bound_by_memory(
            result.device.type == "cpu", _sizes(node, factors), many, few, longest
        )
        if verdict:
            _decompose(rewrite, node, bound, *factors)
        else:
            rewrite.reject(verdict, node)


def _decompose(rewrite: Rewriter, node: Node, bound: Bound, left: Node, right: Node) -> None:
    insert, dtype = partial(rewrite.insert, before=node), value_of(node).dtype
    wide = torch.float32 if _is_half(dtype) else dtype
    if wide is not dtype:
        left, right = (insert(prims.convert_element_type, x, wide) for x in (left, right))
    products = insert(aten.mul.Tensor, insert(aten.unsqueeze, left, -1), insert(aten.unsqueeze, right, -3))
    total = insert(aten.sum.dim_IntList, products, [-2], dtype=wide)
    if bound.packet is aten.addmm:
        if bound["alpha"] != 1:
            total = insert(aten.mul.Tensor, total, bound["alpha"])
        if bound["beta"] != 0:  # with 0 the bias is ignored, even where it is NaN
            bias = bound["self"] if wide is dtype else insert(prims.convert_element_type, bound["self"], wide)
            total = insert(aten.add.Tensor, total, bias, alpha=bound["beta"])
    rewrite.replace(node, total if wide is dtype else insert(prims.convert_element_type, total, dtype))


def _is_half(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and torch.finfo(dtype).bits <= 16


def _sizes(node: Node, factors: list[Node]) -> list[Any]:
    """Batch, rows, inner size, columns."""
    shape = value_of(node).shape
    return [shape[0] if len(shape) > 2 else 1, shape[-2], value_of(factors[0]).shape[-1], shape[-1]]


def _may_decompose(bound: Bound, node: Node, factors: list[Node], context: Context) -> Literal[True] | No:
    result = value_of(node)
    if bound.op not in (aten.mm.default, aten.addmm.default, aten.bmm.default):
        return No("it has an explicit result dtype")
    if not device_of(result.device, context.options).fuses:
        return No("the engine does not fuse, so all products would be materialized")
    if result.dtype.is_complex:
        return No("complex products are not decomposed")
    operands = [*factors, *([bound["self"]] if bound.packet is aten.addmm else [])]
    if not (alike := are_alike(node, *operands)):
        return alike
    if bound.packet is aten.addmm:
        scales = bound["alpha"], bound["beta"]
        if not all(type(scale) in (int, float) for scale in scales) or scales[0] == 0:
            return No(f"alpha={scales[0]} is not a nonzero number, or beta={scales[1]} is no number")
        if not is_expandable(bound["self"], result) or not is_row_major(value_of(bound["self"])):
            return No("the bias is not known to expand to the shape of the result, or is not row-major")
    return True if is_row_major(result) else No("its result is not row-major")


def _is_bound_by_memory(is_cpu: bool, sizes: list[Any], many: int, few: int, longest: int) -> Literal[True] | No:
    if not all(isinstance(size, int) for size in sizes):
        return No("its sizes are not known")
    batch, rows, inner, columns = sizes
    if 0 in sizes:
        return No("it has no elements")
    if is_cpu:
        is_one_row = batch == rows == 1 and max(inner, columns) <= longest
        return True if is_one_row else No(f"on the CPU it is not one row times a matrix of at most {longest}")
    if batch > 1:
        is_thin = batch >= many and sum(size < few for size in (rows, inner, columns)) >= 2
    else:
        is_thin = rows >= many and inner < few and columns < few
    return True if is_thin else No(f"it is not {many} rows, or products, of less than {few} numbers each")


@decompose_mem_bound_mm.example
def row_times_matrix(x: torch.Tensor = f32(1, 6), w: torch.Tensor = f32(6, 5)) -> torch.Tensor:
    return (x @ w).relu()


@decompose_mem_bound_mm.example
def scaled_row(b: torch.Tensor = f32(5), x: torch.Tensor = f32(1, 6), w: torch.Tensor = f32(6, 5)) -> torch.Tensor:
    return torch.addmm(b, x, w, beta=0.5, alpha=-2)


@decompose_mem_bound_mm.refuses("it is not one row times a matrix")
def many_rows(x: torch.Tensor = f32(4, 6), w: torch.Tensor = f32(6, 5)) -> torch.Tensor:
    return x @ w


@decompose_mem_bound_mm.refuses("it is not one row times a matrix of at most 4", options={"longest_row": 4})
def large_matrix(x: torch.Tensor = f32(1, 6), w: torch.Tensor = f32(6, 5)) -> torch.Tensor:
    return x @ w
