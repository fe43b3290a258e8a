"""Pads matrix products with zeros to sizes that are fast on matrix units, where that pays, and slices the result."""

from __future__ import annotations

from functools import partial

import torch

from eductor.cost import device_of
from eductor.graph import GraphView, No, Rewriter, tensor_of
from eductor.passes.functional.products import FACTORS
from eductor.passes.joint.padding.padded import PaddedProducts
from eductor.passes.joint.padding.plan import MEMORY_SHARE, Measure, plan
from eductor.passes.joint.padding.products import read_product
from eductor.passes.joint.padding.trial import measure_product
from eductor.pipeline.base import Context, f32, f64, graph_pass


@graph_pass(stage="joint", numerics="reassociates")
def pad_mm(
    graph: GraphView,
    rewrite: Rewriter,
    context: Context,
    *,
    force: bool = False,
    measure: bool = False,
    memory_share: float = MEMORY_SHARE,
) -> None:
    """Pads matrix products with zeros to sizes that are fast on matrix units, where that pays, and slices the result.

    With `measure`, the best plan is timed against the unpadded product, once per kind of device: the times are cached on
    disk. With `force`, every unaligned size is padded, on any device. The copies for one product take at most
    `memory_share` of the device's memory.

    It pays where the rows of a large matrix are not aligned, on CUDA. That is predicted from sizes, strides and the
    figures of the device, for each dimension separately, copies included.
    """
    padded = PaddedProducts(graph, rewrite)
    for node in graph.find(*FACTORS):
        value = tensor_of(node)
        if value is None or (value.device.type != "cuda" and not force):
            where = "an unknown device" if value is None else f"the device {value.device.type!r}"
            rewrite.reject(f"alignment does not matter on {where}", node)
            continue
        product = read_product(graph, node, device_of(value.device, context.options))
        if isinstance(product, No):
            rewrite.reject(product, node)
            continue
        found = plan(product, force=force, memory_share=memory_share, measure=_timer(measure, value.device))
        if any(found.pads):
            padded.put(node, product, found.pads)
            rewrite.note(found.reason)
        else:
            rewrite.reject(found.reason, node)


def _timer(asked: bool, device: torch.device) -> Measure | None:
    """None under deterministic algorithms: times vary from run to run, and so would the program."""
    is_wanted = asked and not torch.are_deterministic_algorithms_enabled()
    return partial(measure_product, where=device) if is_wanted else None


@pad_mm.example(options={"force": True})
def odd_sizes(x: torch.Tensor = f32(6, 7), w: torch.Tensor = f32(7, 5)) -> torch.Tensor:
    return x @ w


@pad_mm.example(options={"force": True})
def scaled_sum(b: torch.Tensor = f32(5), x: torch.Tensor = f32(8, 7), w: torch.Tensor = f32(5, 7)) -> torch.Tensor:
    return torch.addmm(b, x, w.t(), beta=0.5, alpha=2.0).relu()


@pad_mm.example(options={"force": True})
def batch_of_products(x: torch.Tensor = f32(3, 8, 7), w: torch.Tensor = f32(3, 7, 4)) -> torch.Tensor:
    return torch.bmm(x, w)


@pad_mm.refuses("alignment does not matter on the device 'cpu'")
def on_a_cpu(x: torch.Tensor = f32(6, 7), w: torch.Tensor = f32(7, 5)) -> torch.Tensor:
    return x @ w


@pad_mm.refuses("products in float64 need no alignment", options={"force": True})
def in_double_precision(x: torch.Tensor = f64(6, 7), w: torch.Tensor = f64(7, 5)) -> torch.Tensor:
    return x @ w


@pad_mm.refuses("no size can be padded to a multiple of 4", options={"force": True})
def aligned_sizes(x: torch.Tensor = f32(4, 8), w: torch.Tensor = f32(8, 12)) -> torch.Tensor:
    return x @ w
