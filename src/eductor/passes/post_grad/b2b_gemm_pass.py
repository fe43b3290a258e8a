"""Computes two matrix products with a pointwise function between them in one kernel."""

# ruff: noqa: N802 - a documented name

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from eductor.cost import Device, Gemm, device_of, gemm_of, pays
from eductor.graph import GraphView, No, Rewriter, value_of
from eductor.ops.b2b_gemm import TILE, b2b_gemm
from eductor.ops.middle import spelled
from eductor.passes.post_grad.back_to_back import PRODUCTS, BackToBack, read_back_to_back
from eductor.pipeline.base import Context, f32, f64, graph_pass

LAUNCHES = 16
"""The cost of launching this kernel from Python, in launches of the engine's kernels: 80 us on the host of an H200."""


@graph_pass(stage="post_grad", numerics="reassociates", devices="cuda", on=False)
def B2B_GEMM_PASS(graph: GraphView, rewrite: Rewriter, context: Context, *, force: bool = False) -> None:
    """Computes two matrix products with a pointwise function between them in one kernel.

    `f(a @ b) @ c`: the first product stays on the chip. Both may have a bias; `a @ f(b @ c)` is not fused. It is off by
    default, because no other kernel can fuse with this one: measure before you `enable=["B2B_GEMM_PASS"]`. With `force`
    the products are fused even where the cost model says that it does not pay.

    It pays where the first product has many rows and few columns, as has the result.
    """
    for node in graph.find(*PRODUCTS):
        found = read_back_to_back(graph, node)
        if found is None:
            continue
        if isinstance(found, No):
            rewrite.reject(found, node)
            continue
        if not force and not (verdict := _pays(found, context)):
            rewrite.reject(verdict, node)
            continue
        inner, outer = found.inner, found.outer
        operands = (inner.left, inner.right, outer.right, inner.bias, outer.bias)
        rewrite.replace(node, b2b_gemm, *operands, spelled(found.steps))


def _pays(found: BackToBack, context: Context) -> Literal[True] | No:
    first, second = gemm_of(found.inner.nodes[0]), gemm_of(found.outer.nodes[0])
    assert first is not None
    assert second is not None
    device = device_of(value_of(found.outer.nodes[0]).device, context.options)
    return one_kernel_pays(first, second, bool(found.steps), device)


def one_kernel_pays(first: Gemm, second: Gemm, has_middle: bool, device: Device) -> Literal[True] | No:
    """Whether two chained products are faster as one kernel.

    Compared are the bytes that the tiles of both forms load and store. One kernel reloads the factors of the first
    product and recomputes it for each tile of columns of the result; in exchange it is never stored.
    """
    rows, columns = _tiles(second.rows, TILE), _tiles(second.columns, TILE)
    if rows * columns < device.units:
        return No(f"its {rows * columns} tiles leave some of the {device.units} units of {device.name} idle")
    size = second.dtype.itemsize
    between, result = first.rows * first.columns, second.rows * second.columns
    fused = size * (columns * _loads(first, TILE) + second.inner * second.columns * rows + result)
    separate = size * (_loads(first, device.tile) + _loads(second, device.tile) + result + between)
    launches = 2
    if has_middle:
        separate += 2 * size * between
        launches += 1
    # Where arithmetic dominates, library kernels are faster.
    if (columns * first.flops + second.flops) / device.rate(second.dtype) > fused / device.bandwidth:
        return No(f"as one kernel it would be bound by arithmetic on {device.name}")
    saves = separate / device.bandwidth + launches * device.launch
    return pays("one kernel for both products", saves, fused / device.bandwidth + LAUNCHES * device.launch)


def _loads(gemm: Gemm, tile: int) -> int:
    """The number of elements that all tiles of a product load from both factors."""
    return gemm.inner * (gemm.rows * _tiles(gemm.columns, tile) + gemm.columns * _tiles(gemm.rows, tile))


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


_FORCED = {"force": True}


@B2B_GEMM_PASS.example(options=_FORCED)
def two_layers(
    x: torch.Tensor = f32(32, 8), first: torch.Tensor = f32(8, 6), second: torch.Tensor = f32(6, 4)
) -> torch.Tensor:
    return (x @ first).relu() @ second


@B2B_GEMM_PASS.example(options=_FORCED)
def two_linears(
    x: torch.Tensor = f32(2, 16, 8),
    first: torch.Tensor = f32(6, 8),
    b: torch.Tensor = f32(6),
    second: torch.Tensor = f32(4, 6),
    c: torch.Tensor = f32(4),
) -> torch.Tensor:
    return F.linear(F.silu(F.linear(x, first, b)), second, c)


@B2B_GEMM_PASS.refuses("is used elsewhere", options=_FORCED)
def first_layer_is_kept(
    x: torch.Tensor = f32(32, 8), first: torch.Tensor = f32(8, 6), second: torch.Tensor = f32(6, 4)
) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x @ first).relu()
    return y @ second, y


@B2B_GEMM_PASS.refuses("is also read between the products", options=_FORCED)
def gated(
    x: torch.Tensor = f32(32, 8), first: torch.Tensor = f32(8, 6), gate: torch.Tensor = f32(32, 6)
) -> torch.Tensor:
    return (x @ first * gate) @ gate.t()


@B2B_GEMM_PASS.refuses("its kernel takes", options=_FORCED)
def in_double_precision(x: torch.Tensor = f64(32, 8), w: torch.Tensor = f64(8, 8)) -> torch.Tensor:
    return (x @ w).tanh() @ w


@B2B_GEMM_PASS.refuses("one kernel")
def wide_layers(x: torch.Tensor = f32(4096, 512), w: torch.Tensor = f32(512, 512)) -> torch.Tensor:
    return (x @ w).tanh() @ w
