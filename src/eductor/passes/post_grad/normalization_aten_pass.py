"""Normalizes the operators that split and concatenate tensors, for the passes that match them."""

from __future__ import annotations

import torch

from eductor.graph import GraphView, Rewriter
from eductor.passes.normalization import normalize
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage="post_grad", numerics="exact", on=False)
def normalization_aten_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Normalizes the operators that split and concatenate tensors: known sections, nonnegative dimensions.

    It pays through later passes: the fusions after it match only this form.
    """
    normalize(graph, rewrite)


@normalization_aten_pass.example
def last_piece_is_short(x: torch.Tensor = f32(4, 300)) -> torch.Tensor:
    a, b, c = x.split(128, -1)
    return torch.cat([c, a, b], -1)


@normalization_aten_pass.refuses("its operands are not a list", prepare=lambda module: _forget_the_list(module))
def operands_of_unknown_number(x: torch.Tensor = f32(4, 6)) -> torch.Tensor:
    return torch.cat(x.split([2, 4], 1), -1)


def _forget_the_list(module: torch.fx.GraphModule) -> None:
    """Makes the cat take the list that the split returns."""
    (cat,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    (split,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.split_with_sizes.default)
    cat.args = (split, -1)
