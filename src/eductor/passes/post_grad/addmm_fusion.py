"""Makes one `addmm` of a matrix product and a sum."""

from __future__ import annotations

from typing import Literal

import torch

from eductor.cost import device_of
from eductor.graph import GraphView, No, Rewriter, is_row_major, known_equal, value_of
from eductor.passes.functional.products import are_alike, fuses_into_users, is_expandable
from eductor.patterns import Match, any_of, const, op, pattern_pass, var
from eductor.pipeline.base import Context, f32, f64

aten = torch.ops.aten


@pattern_pass(stage="post_grad", numerics="reassociates")
def addmm_fusion(*, force: bool = False) -> None:
    """Makes one `addmm` of a matrix product and a sum; of two products and their sum, a product and an `addmm`.

    With `force` it is made anywhere.

    It pays where the sum would be a kernel of its own. Where the engine fuses, that is only on an accelerator, and only
    if the sum does not fuse into what reads it: on the CPU `addmm` fills its result with the other operand first, which
    takes as long as the sum.
    """


_PRODUCT = op(aten.mm.default, var("a"), var("b"))


def check(match: Match, *, graph: GraphView, context: Context, force: bool = False) -> Literal[True] | No:
    """Whether the sum is one that `addmm` computes, and computes faster."""
    return (force or _pays(match, graph, context)) and _is_addmm(match)


def _is_addmm(match: Match) -> Literal[True] | No:
    added, alpha, result = match["added"], match["alpha"], value_of(match.output)
    if added in match.nodes:
        return No("the product is used elsewhere")
    if not (alike := are_alike(match.output, added, match["a"], match["b"])):
        return alike
    if type(alpha) not in (int, float) or alpha == 0:
        return No(f"alpha={alpha} does not scale")
    product = value_of(match.node_of(_PRODUCT))
    if not known_equal(tuple(result.shape), tuple(product.shape)) or not is_expandable(added, result):
        return No("what is added is not known to be broadcast to the product")
    return True if is_row_major(result) else No("the sum has the memory layout of what is added")


def _pays(match: Match, graph: GraphView, context: Context) -> Literal[True] | No:
    result = value_of(match.output)
    device = result.device
    if not device_of(device, context.options).fuses:
        is_slow = device.type == "cpu" and result.dtype in (torch.bfloat16, torch.float16)
        return No("on the CPU an addmm in half precision takes longer than a product and a sum") if is_slow else True
    if device.type == "cpu":
        return No("on the CPU the sum takes no longer than filling the result of an addmm")
    return No("the sum fuses into what reads it") if fuses_into_users(graph, match.output) else True


_SUM = any_of(
    op(aten.add.Tensor, _PRODUCT, var("added"), alpha=const("alpha")),
    op(aten.add.Tensor, var("added"), _PRODUCT, alpha=const("alpha")),
)


@addmm_fusion.rule(_SUM, check=check)
def product_and_sum(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    """The `alpha` of a sum scales its second operand, which is what is added, or the product."""
    node, added, alpha = match.output, match["added"], match["alpha"]
    scaled = "beta" if node.args[1] is added else "alpha"
    rewrite.replace(node, aten.addmm, added, match["a"], match["b"], **({scaled: alpha} if alpha != 1 else {}))


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


@addmm_fusion.refuses("is also used by relu", options=_FORCED)
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
