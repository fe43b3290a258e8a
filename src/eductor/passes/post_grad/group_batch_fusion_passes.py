"""Fuses independent calls of the same form into one call with a batch dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eductor.cost import device_of
from eductor.errors import BadOption
from eductor.graph import GraphView, Rewriter
from eductor.graph.core_rewriter import in_core_operators
from eductor.passes.batching import POST_GRAD_RULES, grouped
from eductor.passes.batching.rounds import chosen, make_batches
from eductor.pipeline.base import Context, bf16, f32, f64, graph_pass


@graph_pass(stage="post_grad", numerics="reassociates")
def group_batch_fusion_passes(
    graph: GraphView,
    rewrite: Rewriter,
    context: Context,
    *,
    without: Sequence[str] = (),
    group_linear: str = "never",
) -> None:
    """Fuses independent calls of the same form into one call with a batch dimension.

    As the pre-grad stage does for linears and similar modules, it batches matrix products and the pointwise operators
    after them, those of the backward included. Batched calls have the same dtype, device and shape, and the same
    arguments: `alpha`, `beta`, the rounding mode. Rules: `batch_linear_post_grad`, `batch_aten_tanh`,
    `batch_aten_sigmoid`, `batch_aten_relu`, `batch_aten_add`, `batch_aten_sub`, `batch_aten_mul`, `batch_aten_div`.
    `without` names rules to leave out.

    Products in bfloat16 that differ in only one size, rows, columns or the inner one, become one grouped product by the
    rule `group_linear`, which is opt-in: "where it pays" on accelerators that have a kernel for it; "anywhere" on any
    device.

    It pays where the saved launches outweigh the cost of stacking on the device.
    """
    if group_linear not in grouped.WHEN:
        raise BadOption(f"group_linear={group_linear!r}: it is one of {', '.join(map(repr, grouped.WHEN))}.")
    rules = chosen(POST_GRAD_RULES, without)
    products = [rule for rule in rules if not rule.is_pointwise]
    core, fuses = in_core_operators(rewrite), device_of(torch.device("cpu"), context.options).fuses
    # Where the engine fuses, batching pointwise operators alone does not pay: most graphs are done here.
    more = make_batches(graph, core, context, products) or not fuses
    while more:
        more = make_batches(graph, core, context, rules)
    if group_linear != "never":
        with rewrite.rule(grouped.NAME):
            grouped.group_products(graph, core, context, group_linear)


@group_batch_fusion_passes.example
def products_of_pieces(
    x: torch.Tensor = f32(4, 32), w: torch.Tensor = f32(4, 8, 8), b: torch.Tensor = f32(8)
) -> torch.Tensor:
    pieces = [torch.addmm(b, piece, w[i]).tanh() for i, piece in enumerate(x.split(8, 1))]
    return torch.cat([torch.sub(piece, b, alpha=2).relu() for piece in pieces], 1)


@group_batch_fusion_passes.example(options={"group_linear": grouped.ANYWHERE})
def features_of_different_widths(
    x: torch.Tensor = bf16(4, 48), v: torch.Tensor = bf16(16, 8), w: torch.Tensor = bf16(32, 8)
) -> torch.Tensor:
    a, b = x.split([16, 32], 1)
    return torch.add((a @ v).relu(), (b @ w).tanh())


@group_batch_fusion_passes.refuses("on the device 'cpu'", options={"group_linear": "where it pays"})
def groups_on_the_cpu(
    x: torch.Tensor = bf16(4, 48), v: torch.Tensor = bf16(16, 8), w: torch.Tensor = bf16(32, 8)
) -> torch.Tensor:
    a, b = x.split([16, 32], 1)
    return torch.add((a @ v).relu(), (b @ w).tanh())


@group_batch_fusion_passes.refuses("rounded before the sum", options={"group_linear": grouped.ANYWHERE})
def sums_of_different_widths(
    x: torch.Tensor = bf16(4, 48),
    v: torch.Tensor = bf16(16, 8),
    w: torch.Tensor = bf16(32, 8),
    c: torch.Tensor = bf16(8),
) -> torch.Tensor:
    a, b = x.split([16, 32], 1)
    return torch.addmm(c, a, v).relu() + torch.addmm(c, b, w).tanh()


@group_batch_fusion_passes.refuses("costs")
def large_weights(
    x: torch.Tensor = f32(4, 256), w: torch.Tensor = f32(256, 256), v: torch.Tensor = f32(256, 256)
) -> tuple[torch.Tensor, torch.Tensor]:
    return x @ w, x.sin() @ v


@group_batch_fusion_passes.refuses("no other call has the same form")
def products_in_two_dtypes(
    x: torch.Tensor = f32(4, 16), w: torch.Tensor = f32(8, 8), v: torch.Tensor = f64(8, 8)
) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x.split(8, 1)
    return a @ w, b.double() @ v
