"""Makes one `addmm` of a matrix product and a sum."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.cost import device_of
from eductor.graph.no import No
from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import is_row_major, known_equal, tensor_of, value_of
from eductor.graph.view import GraphView
from eductor.passes.post_grad.products import are_alike, fuses_into_users, is_expandable
from eductor.pipeline.base import Context, f32, f64, graph_pass

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="reassociates")
def addmm_fusion(graph: GraphView, rewrite: Rewriter, context: Context, *, force: bool = False) -> None:
    """Makes one `addmm` of a matrix product and a sum; of two products and their sum, a product and an `addmm`.

    With `force` it is made anywhere.

    It pays where the sum would be a kernel of its own. Where the engine fuses, that is only on an accelerator, and only
    if the sum does not fuse into what reads it: on the CPU `addmm` fills its result with the other operand first, which
    takes as long as the sum.
    """
    for node in graph.find(aten.add.Tensor):
        bound = graph.bind(node)
        if not isinstance(bound, Bound):
            rewrite.reject(bound, node)
            continue
        sides = [side for side in ("self", "other") if _is_product(graph, bound[side])]
        if not sides:
            continue
        found = [_addmm(graph, node, bound, side) for side in sides]
        fusion = next((f for f in found if not isinstance(f, No)), found[0])
        if isinstance(fusion, No):
            rewrite.reject(fusion, node)
        elif not force and not (verdict := _pays(graph, node, context)):
            rewrite.reject(verdict, node)
        else:
            rewrite.replace(node, aten.addmm, *fusion[0], **fusion[1])


def _addmm(graph: GraphView, node: Node, bound: Bound, side: str) -> tuple[tuple[Any, ...], dict[str, Any]] | No:
    """The arguments of the `addmm` that a sum with a product on this side is, or why it is none."""
    product, added, alpha = bound[side], bound["other" if side == "self" else "self"], bound["alpha"]
    factors, result = graph.bind(product), value_of(node)
    assert isinstance(factors, Bound)
    if len(product.users) > 1 or added is product:
        return No("the product is used elsewhere")
    if not (alike := are_alike(node, added, product, factors["self"], factors["mat2"])):
        return alike
    if type(alpha) not in (int, float) or alpha == 0:
        return No(f"alpha={alpha} does not scale")
    if not known_equal(tuple(result.shape), tuple(value_of(product).shape)) or not is_expandable(added, result):
        return No("what is added is not known to be broadcast to the product")
    if not is_row_major(result):
        return No("the sum lies in memory as what is added does")
    scaled = "beta" if side == "self" else "alpha"  # `other` is what the sum scales
    return (added, factors["self"], factors["mat2"]), {scaled: alpha} if alpha != 1 else {}


def _pays(graph: GraphView, node: Node, context: Context) -> Literal[True] | No:
    result = value_of(node)
    device = result.device
    if not device_of(device, context.options).fuses:
        is_slow = device.type == "cpu" and result.dtype in (torch.bfloat16, torch.float16)
        return No("on the CPU an addmm in half precision takes longer than a product and a sum") if is_slow else True
    if device.type == "cpu":
        return No("on the CPU the sum takes no longer than filling the result of an addmm")
    return No("the sum fuses into what reads it") if fuses_into_users(graph, node) else True


def _is_product(graph: GraphView, x: Any) -> bool:
    return isinstance(x, Node) and graph.is_call(x, aten.mm.default) and tensor_of(x) is not None


_FORCED = {"force": True}


@addmm_fusion.example(options=_FORCED)
def product_and_bias(
    a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5), bias: torch.Tensor = f32(5)
) -> torch.Tensor:
    return a @ b + bias


@addmm_fusion.example(options=_FORCED)
def scaled_product(
    a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5), x: torch.Tensor = f32(4, 5)
) -> torch.Tensor:
    return torch.add(x, a @ b, alpha=-2)


@addmm_fusion.example(options=_FORCED)
def two_products(
    a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5), c: torch.Tensor = f32(4, 2), d: torch.Tensor = f32(2, 5)
) -> torch.Tensor:
    return a @ b + c @ d


@addmm_fusion.refuses("the product is used elsewhere", options=_FORCED)
def product_with_another_user(
    a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5), bias: torch.Tensor = f32(5)
) -> tuple[torch.Tensor, torch.Tensor]:
    y = a @ b
    return y + bias, y.relu()


@addmm_fusion.refuses("the result of torch.float64", options=_FORCED)
def wider_sum(a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5), x: torch.Tensor = f64(4, 5)) -> torch.Tensor:
    return a @ b + x


@addmm_fusion.refuses("takes no longer than filling the result")
def on_the_cpu(a: torch.Tensor = f32(4, 3), b: torch.Tensor = f32(3, 5), bias: torch.Tensor = f32(5)) -> torch.Tensor:
    return a @ b + bias
