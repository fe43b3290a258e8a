"""Reads matrix products from a graph: their sizes, the layouts and producers of factors, the readers of the result."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from eductor.cost import Device, is_pointwise
from eductor.cost.operators import size_of
from eductor.graph import Bound, GraphView, No, effect_of, is_row_major, known_equal, tensor_of
from eductor.passes.functional.products import FACTORS, fuses_into_users
from eductor.passes.joint.padding.plan import Dim, Matrix, MatrixProduct, ProductBias

aten = torch.ops.aten


def read_product(graph: GraphView, node: Node, device: Device) -> MatrixProduct | No:
    """The product that a call computes, or why it cannot be padded."""
    bound = graph.bind(node)
    if not isinstance(bound, Bound):
        return bound
    nodes = [bound[name] for name in FACTORS[bound.packet]]
    left, right, result = map(tensor_of, (*nodes, node))
    if left is None or right is None or result is None:
        return No("its fake values are not known")
    if any(t.layout is not torch.strided for t in (left, right)) or left.dtype != right.dtype:
        return No("its factors are not strided tensors of one dtype")
    if not is_row_major(result):
        return No("its result is not row-major")
    sizes: dict[Dim, Any] = {"m": left.shape[-2], "k": left.shape[-1], "n": right.shape[-1]}
    bias = _read_bias(graph, bound, sizes, device) if bound.packet is aten.addmm else None
    if isinstance(bias, No):
        return bias
    return MatrixProduct(
        **{dim: size_of(size) for dim, size in sizes.items()},
        dtype=left.dtype,
        left=_read_matrix(graph, nodes[0], left, ("m", "k"), device),
        right=_read_matrix(graph, nodes[1], right, ("k", "n"), device),
        device=device,
        batch=size_of(left.shape[0]) if left.dim() == 3 else 1,
        bias=bias,
        dynamic=frozenset(dim for dim, size in sizes.items() if not known_equal(size, size_of(size))),
        copies_result=not (accepts_any_strides(graph, node) or (device.fuses and fuses_into_users(graph, node))),
    )


def accepts_any_strides(graph: GraphView, node: Node) -> bool:
    """Whether no user of a result depends on its strides."""
    return all(is_pointwise(user) or graph.is_call(user, *FACTORS) for user in node.users)


def _read_matrix(graph: GraphView, node: Node, tensor: torch.Tensor, dims: tuple[Dim, Dim], device: Device) -> Matrix:
    high, wide = map(size_of, tensor.shape[-2:])
    *outer, down, across = map(size_of, tensor.stride())
    starts = (*outer, size_of(tensor.storage_offset()))
    fuses = device.fuses and _is_pointwise_result(graph, node)
    if across == 1 and down >= wide:
        return Matrix(dims[1], math.gcd(down, *starts), fuses)
    if down == 1 and across >= high:
        return Matrix(dims[0], math.gcd(across, *starts), fuses)
    return Matrix(dims[1], wide, fuses)  # no dimension is contiguous: eager copies it, row by row


def _read_bias(graph: GraphView, bound: Bound, sizes: dict[Dim, Any], device: Device) -> ProductBias | No:
    bias = tensor_of(bound["self"])
    if bias is None:
        return No("its bias is not known")
    dims: list[Dim] = []
    last_first: tuple[Dim, ...] = ("n", "m")
    for dim, size in zip(last_first, reversed(bias.shape), strict=False):
        if known_equal(size, sizes[dim]):
            dims.insert(0, dim)
        elif not known_equal(size, 1):
            return No("it is not known whether its bias is broadcast")
    beta, alpha = (x if isinstance(x, (int, float)) else 1.0 for x in (bound["beta"], bound["alpha"]))
    return ProductBias(tuple(dims), device.fuses and _is_pointwise_result(graph, bound["self"]), beta, alpha)


def _is_pointwise_result(graph: GraphView, node: Node) -> bool:
    """Whether a value, or the base it views, is the result of a pointwise operator."""
    while (effect := effect_of(node, graph.bind)).is_view and effect.shares:
        node = effect.shares[0]
    return is_pointwise(node)
