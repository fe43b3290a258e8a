"""Matrix products of functional graphs: those of the same form become one batched product."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph import Bound, No, known_equal, tensor_of
from eductor.passes.batching.linear import batched, saved_by_one_product
from eductor.passes.batching.rule import BatchCall, BatchRule, CallReading, Column, Emission

aten = torch.ops.aten


def read_product(node: Node, bound: Bound) -> CallReading | No:
    """Both factors and the addend; the calls of a batch agree in `alpha` and `beta`."""
    if bound.op not in (aten.mm.default, aten.addmm.default):
        return No("it requests an output dtype")
    is_sum = bound.packet is aten.addmm
    left, right = (bound["mat1"] if is_sum else bound["self"]), bound["mat2"]
    added = bound["self"] if is_sum else None
    values = [tensor_of(x) for x in (left, right, *([added] if is_sum else []))]
    if any(value is None for value in values):
        return No("an operand is not known to be a tensor")
    if any(known_equal(size, 0) for value in values if value is not None for size in value.shape):
        return No("it has no elements")
    if is_sum and tensor_of(added).dim() == 0:  # type: ignore[union-attr]
        return No("its addend has no dimensions")
    scales = (repr(bound["alpha"]), repr(bound["beta"])) if is_sum else ()
    return CallReading((left, right, added), (bound.op, *scales))


def emit_product(emission: Emission, call: BatchCall, columns: list[Column | None], size: int) -> Node:
    """`bmm` or `baddbmm` of the stacked factors; one product of all rows if the right one is shared."""
    left, right, added = columns
    assert left is not None
    assert right is not None
    if added is None and right.is_shared and not left.is_shared:
        rows = emission(aten.mm, emission(aten.flatten, left.node, 0, 1), right.node)
        return emission(aten.unflatten, rows, 0, [size, -1])
    factors = batched(emission, left, size), batched(emission, right, size)
    if added is None:
        return emission(aten.bmm, *factors)
    value = tensor_of(added.node)
    is_row = not added.is_shared and value is not None and value.dim() == 2
    bias = emission(aten.unsqueeze, added.node, 1) if is_row else added.node
    scales = {name: call.bound[name] for name in ("alpha", "beta") if call.bound[name] != 1}
    return emission(aten.baddbmm, bias, *factors, **scales)


BATCH_PRODUCT = BatchRule(
    "batch_linear_post_grad", (aten.mm, aten.addmm), read_product, emit_product, saved_by_one_product
)
