"""Merges squeezed slices that stand side by side in a cat or stack, between other operands too."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact", on=False)
def fuse_split_getitem_squeeze_cat(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Merges squeezed slices that stand side by side in a cat or stack, between other operands too.

    It pays where such runs are left, which is seldom: the passes before it take most of them, so it is off by default.
    """
    fuse_nests(
        graph, rewrite, context, aten.cat, aten.stack, claims=_claims, what="a cat with squeezed chunks of one tensor"
    )


def _claims(nest: Nest) -> bool:
    return "squeeze" in nest.kinds


@fuse_split_getitem_squeeze_cat.example
def between_other_operands(x: torch.Tensor = f32(2, 4, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    a, b, c, d = torch.split(x, 1, 1)
    return torch.cat([a.squeeze(1), y, b.squeeze(1), c.squeeze(1), d.squeeze(1)], 1)


@fuse_split_getitem_squeeze_cat.example
def in_a_stack(x: torch.Tensor = f32(2, 4, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.stack([*(t.squeeze(1) for t in torch.split(x, 1, 1)), y], 1)


@fuse_split_getitem_squeeze_cat.refuses("no two neighbours")
def operands_in_between(x: torch.Tensor = f32(2, 2, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    a, b = torch.split(x, 1, 1)
    return torch.cat([a.squeeze(1), y, b.squeeze(1)], 1)


@fuse_split_getitem_squeeze_cat.refuses("no two neighbours")
def of_two_tensors(x: torch.Tensor = f32(2, 2, 3), y: torch.Tensor = f32(2, 2, 3)) -> torch.Tensor:
    return torch.cat([torch.split(x, 1, 1)[0].squeeze(1), torch.split(y, 1, 1)[1].squeeze(1)], 1)
