"""Replaces a batched product with a batch of one by a plain matrix product."""

from __future__ import annotations

import torch

from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import known_equal, tensor_of, value_of
from eductor.graph.view import GraphView
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="joint", numerics="reassociates", devices="cuda")
def bmm_to_mm(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a batched product with a batch of one by a plain matrix product.

    `mm` has more kernels to choose from, and later operators fuse into it.

    It pays on CUDA, always: the reshapes around it are views.
    """
    for node in graph.find(aten.bmm):
        bound = graph.bind(node)
        if not isinstance(bound, Bound):
            rewrite.reject(bound, node)
            continue
        operands = bound["self"], bound["mat2"]
        if bound.op is not aten.bmm.default:
            rewrite.reject("it requests an output dtype", node)
        elif not all((t := tensor_of(x)) is not None and known_equal(t.shape[0], 1) for x in operands):
            rewrite.reject("it is not known to be a batch of one", node)
        elif any(known_equal(size, 0) for size in value_of(node).shape):
            rewrite.reject("it has no elements, and its strides differ from those of a plain product", node)
        else:
            a, b = (rewrite.insert(aten.squeeze.dim, x, 0, before=node) for x in operands)
            product = rewrite.insert(aten.mm, a, b, before=node)
            rewrite.replace(node, aten.unsqueeze, product, 0)


@bmm_to_mm.example
def batch_of_one(a: torch.Tensor = f32(1, 4, 3), b: torch.Tensor = f32(1, 3, 5)) -> torch.Tensor:
    return torch.bmm(a, b).relu()


@bmm_to_mm.refuses("not known to be a batch of one")
def batch_of_two(a: torch.Tensor = f32(2, 4, 3), b: torch.Tensor = f32(2, 3, 5)) -> torch.Tensor:
    return torch.bmm(a, b).relu()
