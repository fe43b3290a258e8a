"""Pointwise operators, which carry an existing batch on to the next operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.cost import Device
from eductor.graph import Bound, No, tensor_of, value_of
from eductor.passes.batching.rule import BatchCall, BatchRule, CallReading, Column, Emission, saved_launches

aten = torch.ops.aten


def _read(node: Node, bound: Bound) -> CallReading | No:
    result = tensor_of(node)
    columns: list[Node] = []
    attributes: list[Any] = []
    for name, given in bound.arguments.items():
        value = tensor_of(given)
        if value is None:
            attributes.append((name, _hashable(given)))
            continue
        if value.dim() == 0 and (result is None or value.dtype != result.dtype):
            return No("a zero-dimensional tensor takes no part in type promotion, a stack of them would")
        columns.append(given)
        attributes.append(name)
    return CallReading(tuple(columns), (bound.op, *attributes))


def _hashable(given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return tuple(map(_hashable, given))
    return repr(given) if isinstance(given, (float, complex)) else given


def _read_dropout(node: Node, bound: Bound) -> CallReading | No:
    drops = value_of(bound["train"]) is not False and value_of(bound["p"]) != 0
    return No("it draws random numbers, which a batch would draw in another order") if drops else _read(node, bound)


def _emit(emission: Emission, call: BatchCall, columns: list[Column | None], size: int) -> Node:
    """The operator itself on stacked operands, with dimensions of size 1 where an operand had fewer of them."""
    rank = call.result.dim()
    stacked = iter(columns)
    arguments: dict[str, Any] = {}
    for name, given in call.bound.arguments.items():
        if tensor_of(given) is None:
            arguments[name] = given
            continue
        column = next(stacked)
        assert column is not None
        arguments[name] = column.node if column.is_shared else _aligned(emission, column.node, rank)
    args, kwargs = Bound(call.bound.op, arguments, call.bound.given).call()
    return emission(call.bound.op, *args, **kwargs)


def _aligned(emission: Emission, node: Node, rank: int) -> Node:
    value = tensor_of(node)
    for _ in range(0 if value is None else rank + 1 - value.dim()):
        node = emission(aten.unsqueeze, node, 1)
    return node


def _saves_nothing(calls: list[BatchCall], device: Device, trains: bool) -> float:
    """A view costs nothing, but must not interrupt a chain of batches."""
    return 1e-9


def _rule(name: str, *operators: Any) -> BatchRule:
    return BatchRule(name, operators, _read, _emit, saved_launches, is_pointwise=True)


BATCH_DETACH = BatchRule("batch_detach", (aten.detach,), _read, _emit, _saves_nothing, is_pointwise=True)
BATCH_DROPOUT = BatchRule("batch_dropout", (aten.dropout,), _read_dropout, _emit, _saves_nothing, is_pointwise=True)

POINTWISE: tuple[BatchRule, ...] = (
    _rule("batch_tanh", aten.tanh),
    _rule("batch_sigmoid", aten.sigmoid),
    _rule("batch_relu", aten.relu),
    BATCH_DETACH,
    _rule("batch_nan_to_num", aten.nan_to_num),
    _rule("batch_clamp", aten.clamp, aten.clamp_min, aten.clamp_max, aten.hardtanh),
    BATCH_DROPOUT,
    _rule("batch_add", aten.add),
    _rule("batch_sub", aten.sub, aten.rsub),
    _rule("batch_mul", aten.mul),
    _rule("batch_div", aten.div),
    _rule(
        "batch_pointwise",
        *(aten.gelu, aten.silu, aten.leaky_relu, aten.elu, aten.selu, aten.celu, aten.relu6, aten.mish, aten.softplus),
        *(aten.hardsigmoid, aten.hardswish, aten.log_sigmoid, aten.neg, aten.abs, aten.sign, aten.square, aten.sqrt),
        *(aten.rsqrt, aten.reciprocal, aten.exp, aten.expm1, aten.log, aten.log1p, aten.sin, aten.cos, aten.erf),
        *(aten.pow, aten.maximum, aten.minimum, aten.where, aten.lerp, aten.addcmul, aten.to, aten._to_copy),
    ),
)
