"""Layer norms of the same form: one layer norm without weights, then the stacked weights."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph import Bound, No, tensor_of
from eductor.passes.batching.rule import BatchCall, BatchRule, CallReading, Column, Emission, saved_launches

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)


def _read(node: Node, bound: Bound) -> CallReading | No:
    shape, eps = bound["normalized_shape"], bound["eps"]
    if not all(isinstance(size, int) for size in shape) or not isinstance(eps, float):
        return No("its normalized shape or eps is computed")
    return CallReading((bound["input"], bound["weight"], bound["bias"]), (tuple(shape), eps))


def _emit(emission: Emission, call: BatchCall, columns: list[Column | None], size: int) -> Node:
    x, weight, bias = columns
    assert x is not None
    shape, eps = call.reading.attributes
    affine = [c for c in (weight, bias) if c is not None]
    if all(c.is_shared for c in affine):
        return emission(aten.layer_norm, x.node, list(shape), weight and weight.node, bias and bias.node, eps)
    result = emission(aten.layer_norm, _precise(emission, x.node), list(shape), None, None, eps)
    leading = call.result.dim() - len(shape)
    if weight is not None:
        result = emission(aten.mul, result, _over(emission, weight, size, leading, shape))
    if bias is not None:
        result = emission(aten.add, result, _over(emission, bias, size, leading, shape))
    value = tensor_of(result)
    if value is None or value.dtype != call.result.dtype:
        result = emission(aten.to, result, call.result.dtype)
    return result


def _over(emission: Emission, column: Column, size: int, leading: int, shape: tuple[int, ...]) -> Node:
    """Weights in the precision of the computation, one set for each member of the batch."""
    node = _precise(emission, column.node)
    return node if column.is_shared else emission(aten.reshape, node, [size, *([1] * leading), *shape])


def _precise(emission: Emission, node: Node) -> Node:
    """Casts half types to float32, to normalize, scale and round once, as the fused kernel does."""
    value = tensor_of(node)
    return emission(aten.to, node, torch.float32) if value is not None and value.dtype in _HALVES else node


BATCH_LAYERNORM = BatchRule("batch_layernorm", (aten.layer_norm,), _read, _emit, saved_launches)
