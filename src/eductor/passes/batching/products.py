"""Linears and matrix products of the same form on different operands: one batched matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch.fx import Node

from eductor.cost import Device, Gemm, gemm_of, gemm_time
from eductor.graph import Bound, No, known_equal, tensor_of, value_of
from eductor.passes.batching.rule import BatchCall, BatchRule, CallReading, Column, Emission

aten = torch.ops.aten


def read_linear(node: Node, bound: Bound) -> CallReading | No:
    """The input, the weight and the bias of a linear that is certain to be a matrix product."""
    x, weight, bias = bound["input"], bound["weight"], bound["bias"]
    verdict = _is_usual(tensor_of(x), tensor_of(weight), tensor_of(bias) if bias is not None else None)
    return verdict and CallReading((x, weight, bias), ())


def _is_usual(x: torch.Tensor | None, weight: torch.Tensor | None, bias: torch.Tensor | None) -> Literal[True] | No:
    if x is None or weight is None:
        return No("an operand is not known to be a tensor")
    if weight.dim() != 2 or x.dim() == 0:
        return No("its weight is not a matrix")
    if bias is not None and not (bias.dim() == 1 and known_equal(bias.shape[0], weight.shape[0])):
        return No("its bias is not a vector with one number for each output")
    if sum(not isinstance(size, int) for size in x.shape[1:-1]) > (1 if isinstance(x.shape[0], int) else 0):
        return No("more than one leading size of its input is symbolic")
    if any(known_equal(size, 0) for size in (*x.shape, *weight.shape)):
        return No("it has no elements")
    return True


def emit_linear(emission: Emission, call: BatchCall, columns: list[Column | None], size: int) -> Node:
    """`baddbmm` of the stacked inputs with the stacked weights; shared weights make it one linear."""
    x, weight, bias = columns
    assert x is not None
    assert weight is not None
    if weight.is_shared and (bias is None or bias.is_shared) and not x.is_shared:
        return emission(aten.linear, x.node, weight.node, bias.node if bias else None)
    inputs = batched(emission, x, size)
    shape = list(call.result.shape[:-1])
    if not shape:
        inputs = emission(aten.unsqueeze, inputs, 1)
    elif len(shape) > 1:
        inputs = emission(aten.flatten, inputs, 1, -2)
    weights = emission(aten.transpose, batched(emission, weight, size), 1, 2)
    if bias is None:
        result = emission(aten.bmm, inputs, weights)
    else:
        biases = emission(aten.unsqueeze, batched(emission, bias, size), 1)
        result = emission(aten.baddbmm, biases, inputs, weights)
    if not shape:
        return emission(aten.squeeze, result, 1)
    if len(shape) > 1:
        return emission(aten.unflatten, result, 1, [s if isinstance(s, int) else -1 for s in shape])
    return result


def batched(emission: Emission, column: Column, size: int) -> Node:
    """An operand with the batch as its first dimension: a shared one is expanded, not copied."""
    if not column.is_shared:
        return column.node
    alone = emission(aten.unsqueeze, column.node, 0)
    return emission(aten.expand, alone, [size, *(-1 for _ in value_of(column.node).shape)])


def saved_by_one_product(calls: list[BatchCall], device: Device, trains: bool) -> float:
    """Seconds that separate matrix products take longer than a batched one, with their backward in training."""
    gemm = gemm_of(calls[0].node)
    if gemm is None:
        return 0.0
    return gain([gemm] * len(calls), Gemm(gemm.rows, gemm.columns, gemm.inner, gemm.dtype, len(calls)), device, trains)


def gain(alone: Sequence[Gemm], together: Gemm, device: Device, trains: bool) -> float:
    """Seconds that matrix products take longer one by one than together, with their backward in training."""

    def time(gemm: Gemm) -> float:
        return sum(gemm_time(g, device) for g in ((gemm, *gemm.backward()) if trains else (gemm,)))

    return sum(map(time, alone)) - time(together)


BATCH_LINEAR = BatchRule("batch_linear", (aten.linear,), read_linear, emit_linear, saved_by_one_product)


# ------------------------------------------------------------------------------------------------ in functional graphs


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
