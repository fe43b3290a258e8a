"""Linears of the same form on different inputs: one batched matrix product."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.cost import Device, Gemm, gemm_of, gemm_time
from eductor.graph import Bound, No, known_equal, tensor_of
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
    value = tensor_of(column.node)
    assert value is not None
    alone = emission(aten.unsqueeze, column.node, 0)
    return emission(aten.expand, alone, [size, *(-1 for _ in value.shape)])


def saved_by_one_product(calls: list[BatchCall], device: Device, trains: bool) -> float:
    """Seconds that separate matrix products take longer than a batched one, with their backward in training."""
    gemm = gemm_of(calls[0].node)
    return 0.0 if gemm is None else _gain(gemm, len(calls), device, trains)


def _gain(gemm: Gemm, count: int, device: Device, trains: bool) -> float:
    batch = Gemm(gemm.rows, gemm.columns, gemm.inner, gemm.dtype, count)
    alone: tuple[Any, ...] = (gemm, *gemm.backward()) if trains else (gemm,)
    together = (batch, *batch.backward()) if trains else (batch,)
    return count * sum(gemm_time(g, device) for g in alone) - sum(gemm_time(g, device) for g in together)


BATCH_LINEAR = BatchRule("batch_linear", (aten.linear,), read_linear, emit_linear, saved_by_one_product)
