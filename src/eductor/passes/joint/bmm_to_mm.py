"""Replaces a batched product with a batch of one by a plain matrix product."""

from __future__ import annotations

from typing import Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, Rewriter, known_equal, value_of
from eductor.patterns import Match, pattern_pass
from eductor.pipeline.base import f32

aten = torch.ops.aten


@pattern_pass(stage="joint", numerics="reassociates", devices="cuda")
def bmm_to_mm() -> None:
    """Replaces a batched product with a batch of one by a plain matrix product.

    `mm` has more kernels to choose from, and later operators fuse into it.

    It pays on CUDA, always: the reshapes around it are views.
    """


def batched_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a.squeeze(0), b.squeeze(0)).unsqueeze(0)


def check(match: Match) -> Literal[True] | No:
    """Whether the result has elements."""
    is_empty = any(known_equal(size, 0) for size in value_of(match.output).shape)
    return No("it has no elements, and strides that no plain product has") if is_empty else True


bmm_to_mm.replace(
    batched_product,
    product,
    inputs=[f32(1, 4, 3), f32(1, 3, 5)],
    check=check,
    tolerate="kinds",
    stored="products.batch_of_one",
)


@bmm_to_mm.call(aten.bmm)
def dtype_of_its_own(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """A result that is wider than its operands stays: `mm` would round it."""
    bound = graph.bind(node)
    if isinstance(bound, Bound) and bound.op is not aten.bmm.default:
        rewrite.reject("it asks for a dtype of its own", node)


@bmm_to_mm.example
def batch_of_one(a: torch.Tensor = f32(1, 4, 3), b: torch.Tensor = f32(1, 3, 5)) -> torch.Tensor:
    return torch.bmm(a, b).relu()


@bmm_to_mm.refuses("a.shape[0] is 2, the pattern wants 1")
def batch_of_two(a: torch.Tensor = f32(2, 4, 3), b: torch.Tensor = f32(2, 3, 5)) -> torch.Tensor:
    return torch.bmm(a, b).relu()
