"""Fuses linears of one input with packed four-bit weights into one, and splits its result."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import is_symbolic, sort_key
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_true, tensor_of
from eductor.graph.reading.static import is_static, mark_parameters, pack
from eductor.graph.values.module_tensors import attribute_at
from eductor.passes.batching.limits import Placing, own_copy
from eductor.passes.batching.rule import Emission
from eductor.passes.batching.shared_input import SharedProduct, needs_copy, parts_of
from eductor.pipeline.base import Context, TensorSpec, bf16, graph_pass

aten = torch.ops.aten

_BLOCK = 64
"""Weights are packed in blocks of this many outputs, or half as many; whole blocks can be concatenated as they are."""


@graph_pass(stage=("pre_grad", "post_grad"), numerics="reassociates", devices="cpu", inference_only=True)
def concat_linear_woq_int4(graph: GraphView, rewrite: Rewriter, context: Context, *, most_rows: int = 4) -> None:
    """Fuses linears of one input with packed four-bit weights into one, and splits its result.

    They have the same group size, dtypes and row length. Weights, scales and zeros are concatenated once: parameters
    before autograd, where these can be packed; attributes of the graph in either stage.

    It pays where the input has few rows: it saves a launch and a read of the input, which matter less with each row.
    The input may have at most `most_rows` rows.
    """
    found: dict[Any, list[SharedProduct]] = {}
    for node in sorted(graph.calls(aten._weight_int4pack_mm_for_cpu), key=sort_key):
        bound, result = graph.bind(node), tensor_of(node)
        if not isinstance(bound, Bound) or result is None:
            rewrite.reject("its arguments or its result are not known", node)
            continue
        weight, scales = tensor_of(bound["mat2"]), tensor_of(bound["qScaleAndZeros"])
        if weight is None or scales is None or is_symbolic(weight) or is_symbolic(scales) or not is_row_major(result):
            rewrite.reject("the sizes of its weights are not known, or its result is not row-major", node)
            continue
        if not known_true(result.shape[0] <= most_rows):
            rewrite.reject(f"its input is not known to have at most {most_rows} rows", node)
            continue
        key = (bound["self"], bound["qGroupSize"], weight.dtype, weight.shape[1:], scales.dtype, scales.shape[::2])
        product = SharedProduct(
            node, bound.packet, bound["self"], bound["mat2"], bound["qScaleAndZeros"], weight.shape[0]
        )
        found.setdefault(key, []).append(product)
    groups = {products[0].node: products for products in found.values()}
    for leader in graph.candidates(list(groups)):
        products = groups[leader]
        rewrite.record(_concat(graph, rewrite, context, products), *(product.node for product in products))


def _concat(graph: GraphView, rewrite: Rewriter, context: Context, products: list[SharedProduct]) -> Literal[True] | No:
    if len(products) == 1:
        return No("no other linear has the same input, group size and row length")
    if any(product.width % _BLOCK for product in products[:-1]):
        return No(f"its outputs are not whole blocks of {_BLOCK}")
    operands = [x for product in products for x in (product.weight, product.bias) if x is not None]
    are_held = all(x.op == "get_attr" for x in operands)
    if not are_held and not (context.packs and all(map(is_static, operands))):
        return No("its weights would be concatenated in each call")
    found = Placing(graph).place(product.node for product in products)
    if isinstance(found, No):
        return found
    before, moved = found
    for node in moved:
        rewrite.move(node, before=before)
    emission = Emission(rewrite, before, products[0].node)
    copied = [product for product in products if needs_copy(graph, product)]
    weight = _concatenated(emission, [product.weight for product in products], 0, are_held)
    scales = _concatenated(emission, [product.bias for product in products if product.bias is not None], 1, are_held)
    group_size = graph.bound(products[0].node)["qGroupSize"]
    wide = emission(aten._weight_int4pack_mm_for_cpu, products[0].x, weight, group_size, scales)
    for product, part in zip(products, parts_of(emission, wide, products), strict=True):
        own = own_copy(rewrite, part, before=before, like=product.node) if product in copied else part
        rewrite.replace(product.node, own)
    return True


def _concatenated(emission: Emission, nodes: list[Node], dim: int, are_held: bool) -> Node:
    """An attribute with the values of all, or for parameters a packed cat."""
    if are_held:
        owner = emission.rewrite.view.module
        value = torch.cat([attribute_at(owner, str(node.target)) for node in nodes], dim)
        return emission.rewrite.attribute(value, before=emission.before, like=emission.like)
    joined = emission(aten.cat, nodes, dim)
    pack(joined)
    return joined


# -------------------------------------------------------------------------------------------------------------- examples


def _packed(rows: int) -> Any:
    return TensorSpec(torch.uint8, (rows, 32))


@concat_linear_woq_int4.example(prepare=mark_parameters)
def gate_and_up(
    x: torch.Tensor = bf16(3, 64),
    gate: torch.Tensor = _packed(64),
    up: torch.Tensor = _packed(64),
    gate_scales: torch.Tensor = bf16(2, 64, 2),
    up_scales: torch.Tensor = bf16(2, 64, 2),
) -> torch.Tensor:
    y: torch.Tensor = aten._weight_int4pack_mm_for_cpu(x, gate, 32, gate_scales)
    z: torch.Tensor = aten._weight_int4pack_mm_for_cpu(x, up, 32, up_scales)
    return y.sigmoid() * z


@concat_linear_woq_int4.refuses("no other linear has the same input, group size", prepare=mark_parameters)
def groups_of_another_size(
    x: torch.Tensor = bf16(3, 64),
    a: torch.Tensor = _packed(64),
    b: torch.Tensor = _packed(64),
    a_scales: torch.Tensor = bf16(2, 64, 2),
    b_scales: torch.Tensor = bf16(1, 64, 2),
) -> torch.Tensor:
    y: torch.Tensor = aten._weight_int4pack_mm_for_cpu(x, a, 32, a_scales)
    z: torch.Tensor = aten._weight_int4pack_mm_for_cpu(x, b, 64, b_scales)
    return y + z


@concat_linear_woq_int4.refuses("in each call")
def weights_that_are_no_parameters(
    x: torch.Tensor = bf16(3, 64),
    a: torch.Tensor = _packed(64),
    b: torch.Tensor = _packed(64),
    scales: torch.Tensor = bf16(2, 64, 2),
) -> torch.Tensor:
    y: torch.Tensor = aten._weight_int4pack_mm_for_cpu(x, a, 32, scales)
    z: torch.Tensor = aten._weight_int4pack_mm_for_cpu(x, b, 32, scales)
    return y + z
