"""Normalizes the operators that split, join and permute tensors: known sizes, dimensions counted from the front."""

from __future__ import annotations

import torch

from eductor.graph import GraphView, Rewriter
from eductor.passes.normalization import normalize
from eductor.pipeline.base import f32, graph_pass


@graph_pass(stage="pre_grad", numerics="exact")
def normalization_pass_aten(graph: GraphView, rewrite: Rewriter) -> None:
    """Normalizes the operators that split, join and permute tensors: known sizes, dimensions counted from the front.

    Every split becomes `split_with_sizes`, every concatenation along an existing dimension becomes `cat`. No value,
    alias or layout changes.

    It pays indirectly: third-party passes, and readers, see one form where authors have a dozen.
    """
    normalize(graph, rewrite)


@normalization_pass_aten.example
def chunk_with_a_short_piece(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b, c = x.chunk(3, -1)
    return a * b + c.sum()


@normalization_pass_aten.example
def stack_of_columns(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.stack([torch.hstack([a, b]), torch.cat([b, a], -1)], -1)


@normalization_pass_aten.example
def size_to_be_inferred(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    return x.reshape(2, -1).mT.unsqueeze(-1)


@normalization_pass_aten.refuses("which autograd forbids")
def pieces_that_are_written(x: torch.Tensor = f32(4, 6)) -> torch.Tensor:
    a, b = torch.unsafe_split(x * 2, 3, 1)
    return a.add_(b)


@normalization_pass_aten.refuses("out= writes")
def out_of_the_callers(a: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(2, 6)) -> torch.Tensor:
    return torch.cat([a, a], -1, out=y)
