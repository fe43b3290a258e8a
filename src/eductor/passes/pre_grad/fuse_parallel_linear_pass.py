"""Fuses linears of one input into one wider linear, and splits its result."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from eductor.graph import GraphView, Rewriter
from eductor.passes.batching.shared_input import fuse_shared_inputs
from eductor.pipeline.base import Context, f32, graph_pass


@graph_pass(stage="pre_grad", numerics="reassociates")
def fuse_parallel_linear_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Fuses linears of one input into one wider linear, and splits its result.

    Query, key and value; gate and up; widths may differ, and a bias may be missing. Products with a matrix (`matmul`,
    `mm`, `addmm`) count as well.

    It pays where the launches and reads of the input that it saves outweigh concatenating the weights, which in
    inference is done once, and copying parts whose strides are observable.
    """
    fuse_shared_inputs(graph, rewrite, context)


@fuse_parallel_linear_pass.example
def gates_of_a_cell(x: torch.Tensor = f32(16, 32), w: torch.Tensor = f32(4, 16, 32)) -> torch.Tensor:
    i, f, g, o = (F.linear(x, weight) for weight in w)
    return torch.sigmoid(o) * torch.tanh(torch.sigmoid(f) + torch.sigmoid(i) * torch.tanh(g))


@fuse_parallel_linear_pass.example
def unequal_widths(
    x: torch.Tensor = f32(16, 32), w: torch.Tensor = f32(24, 32), v: torch.Tensor = f32(8, 32), b: torch.Tensor = f32(8)
) -> torch.Tensor:
    wide = [F.linear(x, weight).tanh() for weight in (w, 2 * w, 3 * w)]
    return sum(wide, torch.zeros(())).sum() + F.linear(x, v, b).tanh().sum()


@fuse_parallel_linear_pass.refuses("may write what is read")
def input_written_between(
    x: torch.Tensor = f32(16, 64), q: torch.Tensor = f32(16, 64), k: torch.Tensor = f32(16, 64)
) -> torch.Tensor:
    h = x + 1
    first = F.linear(h, q).tanh()
    h.mul_(2)
    return first + F.linear(h, k)


@fuse_parallel_linear_pass.refuses("costs")
def weights_larger_than_all_else(
    x: torch.Tensor = f32(1, 512), q: torch.Tensor = f32(512, 512), k: torch.Tensor = f32(512, 512)
) -> torch.Tensor:
    return F.linear(x, q).tanh() + F.linear(x, k)
