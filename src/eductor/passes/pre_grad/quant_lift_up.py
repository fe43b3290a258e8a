"""Quantizes a tensor before it is reshaped, not after: fewer bytes are moved, and its producer can fuse it."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node, map_arg

from eductor.compat import quantized_operators
from eductor.graph import Bound, GraphView, No, Rewriter, known_equal, tensor_of
from eductor.graph.values.meta import fake_mode_of
from eductor.passes.functional.layout_safety import RESHAPES, may_be_view
from eductor.pipeline.base import f32, graph_pass

aten, decomposed = torch.ops.aten, quantized_operators()

_QUANTIZERS = (
    *(aten.quantize_per_tensor, aten.quantize_per_channel),
    *(decomposed.quantize_per_tensor, decomposed.quantize_per_channel),
)


@graph_pass(stage="pre_grad", numerics="exact")
def quant_lift_up(graph: GraphView, rewrite: Rewriter) -> None:
    """Quantizes a tensor before it is reshaped, not after: fewer bytes are moved, and its producer can fuse it.

    One scale for all elements does not depend on their positions; scales per channel do.

    It pays where a reshape copies: it then copies a quarter of the bytes of float32.
    """
    for quantize in graph.find(*_QUANTIZERS):
        bound = graph.bind(quantize)
        if not isinstance(bound, Bound):
            rewrite.reject(bound, quantize)
        elif views := _views_above(graph, next(iter(bound.arguments.values()))):
            rewrite.record(_lift(graph, rewrite, quantize, bound, views), quantize, views[-1])


def _lift(graph: GraphView, rewrite: Rewriter, quantize: Node, bound: Bound, views: list[Node]) -> No | None:
    source = graph.bound(views[0])["self"]
    if not (verdict := _may_lift(graph, bound, quantize, views, source)):
        return verdict
    args, kwargs = _call(bound, source)
    quantized = rewrite.insert(bound.op, *args, before=views[0], like=quantize, **kwargs)
    args, kwargs = map_arg((views[0].args, views[0].kwargs), lambda n: quantized if n is source else n)
    rewrite.update(views[0], args=args, kwargs=kwargs)
    rewrite.replace(quantize, views[-1])
    return None


def _views_above(graph: GraphView, node: Any) -> list[Node]:
    """The reshapes that produced a value, in order; one above the last that has other users ends the chain."""
    views: list[Node] = []
    while (view := graph.call(node, *RESHAPES)) is not None and (not views or len(node.users) == 1):
        views.insert(0, node)
        node = view["self"]
    return views


def _call(bound: Bound, source: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the quantization with another tensor to quantize."""
    first = next(iter(bound.arguments))
    return Bound(bound.op, {**bound.arguments, first: source}, bound.given).call()


def _may_lift(graph: GraphView, bound: Bound, quantize: Node, views: list[Node], source: Any) -> Literal[True] | No:
    if "axis" in bound.arguments:
        return No("each channel has its own scale, and a reshape moves the channels")
    if sum(isinstance(value, Node) for value in bound.arguments.values()) > 1:
        return No("the scale and the zero point are computed, perhaps later")
    if len(views[-1].users) > 1:
        return No(f"{views[-1].name} is used elsewhere")
    effects = graph.effects
    return (
        effects.same_region([views[0], quantize])
        and effects.unwritten([source], views[0], quantize)
        and may_be_view(graph, quantize)
        and _keeps_layout(graph, bound, quantize, views[-1], source)
    )


def _keeps_layout(graph: GraphView, bound: Bound, quantize: Node, view: Node, source: Node) -> Literal[True] | No:
    mode = fake_mode_of(graph.graph)
    old, viewed, value = tensor_of(quantize), tensor_of(view), tensor_of(source)
    if mode is None or old is None or viewed is None or value is None:
        return No("the layout of the result is not known")
    args, kwargs = _call(bound, value)
    with mode, torch.no_grad():
        quantized = bound.op(*args, **kwargs)
    stays = known_equal(quantized.stride(), value.stride()) and known_equal(old.stride(), viewed.stride())
    return True if stays else No("the result would have other strides")


@quant_lift_up.example
def quantized_after_a_permutation(x: torch.Tensor = f32(2, 3, 4)) -> Any:
    reshaped = torch.relu(x.float()).view(2, 12).transpose(0, 1)
    quantized = torch.ops.quantized_decomposed.quantize_per_tensor(reshaped, 0.1, 2, 0, 255, torch.uint8)
    return quantized.sum(0)


@quant_lift_up.refuses("has its own scale")
def quantized_per_channel(x: torch.Tensor = f32(2, 3), scale: torch.Tensor = f32(2)) -> Any:
    zero = torch.zeros(2, dtype=torch.int64)
    reshaped = x.view(3, 2).t()
    quantized = torch.ops.quantized_decomposed.quantize_per_channel(reshaped, scale, zero, 0, 0, 255, torch.uint8)
    return quantized.sum(0)


@quant_lift_up.refuses("is used elsewhere")
def reshaped_value_with_another_user(x: torch.Tensor = f32(2, 3)) -> Any:
    reshaped = x.permute(1, 0)
    return torch.ops.quantized_decomposed.quantize_per_tensor(reshaped, 0.1, 2, 0, 255, torch.uint8) + reshaped
