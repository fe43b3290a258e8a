"""Fuses matrix products that share an input into one wider product on the CPU, and splits its result."""

from __future__ import annotations

import torch

from eductor.graph import GraphView, Rewriter
from eductor.graph.core_rewriter import in_core_operators
from eductor.passes.batching.shared_input import fuse_shared_inputs
from eductor.pipeline.base import Context, f32, graph_pass


@graph_pass(stage="post_grad", numerics="reassociates", devices="cpu", on=False)
def grouped_gemm_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Fuses matrix products that share an input into one wider product on the CPU, and splits its result.

    The products have the same operator, dtype and device; none is scaled. `fuse_parallel_linear_pass` does the same
    before autograd, where weights are concatenated once; here they are concatenated in each call.

    It pays where the weights are small compared to the input, which is read once.
    """
    fuse_shared_inputs(graph, in_core_operators(rewrite), context)


@grouped_gemm_pass.example
def query_key_and_value(x: torch.Tensor = f32(16, 32), w: torch.Tensor = f32(3, 32, 16)) -> torch.Tensor:
    query, key, value = x @ w[0], x @ w[1], x @ w[2]
    return query.tanh() * key.sigmoid() + value


@grouped_gemm_pass.refuses("it scales its operands")
def scaled_sums(
    b: torch.Tensor = f32(16), x: torch.Tensor = f32(16, 32), w: torch.Tensor = f32(2, 32, 16)
) -> torch.Tensor:
    return torch.addmm(b, x, w[0], alpha=2).relu() + torch.addmm(b, x, w[1], alpha=2).relu()


@grouped_gemm_pass.refuses("costs")
def weights_larger_than_all_else(x: torch.Tensor = f32(1, 512), w: torch.Tensor = f32(2, 512, 512)) -> torch.Tensor:
    return (x @ w[0]).tanh() + x @ w[1]
