"""Gives the operators that cut and join tensors one form each, as the passes after it look for them."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.passes.normalization import normalize
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage="post_grad", numerics="exact", on=False)
def normalization_aten_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Gives the operators that cut and join tensors one form each: known sections, dimensions counted from the front.

    It pays by what follows: the fusions after it look for this form alone.
    """
    normalize(graph, rewrite)


@normalization_aten_pass.example
def last_piece_is_short(x: torch.Tensor = f32(4, 300)) -> torch.Tensor:
    a, b, c = x.split(128, -1)
    return torch.cat([c, a, b], -1)


@normalization_aten_pass.refuses("not listed", prepare=lambda module: _forget_the_list(module))
def operands_of_unknown_number(x: torch.Tensor = f32(4, 6)) -> torch.Tensor:
    return torch.cat(x.split([2, 4], 1), -1)


def _forget_the_list(module: torch.fx.GraphModule) -> None:
    """A cat of all results of a call, whatever their number."""
    (cat,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    (split,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.split_with_sizes.default)
    cat.args = (split, -1)
