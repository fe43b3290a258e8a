"""Folds a batch norm in evaluation mode into the convolution or linear before it, in training."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from eductor.cost import bytes_of
from eductor.graph import GraphView, No, Rewriter
from eductor.passes.pre_grad.batch_norm_folding import CONVOLUTIONS, TRANSPOSED, Fold, folds
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates")
def efficient_conv_bn_eval_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Folds a batch norm in evaluation mode into the weights before it, where these are smaller than the activation.

    The weights are folded in the graph, so that gradients reach all parameters; nothing as large as the activation is
    normalized, or saved for the backward.

    It pays where the activation is larger than the weight, which the pass checks.
    """
    for fold in folds(graph, rewrite, *CONVOLUTIONS, *TRANSPOSED, aten.linear):
        if verdict := _pays(fold, context):
            fold.apply(rewrite)
        else:
            rewrite.reject(verdict, fold.norm)


def _pays(fold: Fold, context: Context) -> Literal[True] | No:
    if context.is_inference:
        return No("without a backward, nothing is saved for it")
    if bytes_of(fold.call) <= bytes_of(fold.weight):
        return No("the activation is not larger than the weight")
    return True


@efficient_conv_bn_eval_pass.example
def frozen_statistics(
    x: torch.Tensor = f32(2, 3, 12, 12),
    weight: torch.Tensor = f32(4, 3, 3, 3),
    bias: torch.Tensor = f32(4),
    mean: torch.Tensor = f32(4),
    var: torch.Tensor = f32(4),
    gamma: torch.Tensor = f32(4),
    beta: torch.Tensor = f32(4),
) -> torch.Tensor:
    var = var * var
    return F.batch_norm(F.conv2d(x, weight, bias, stride=2), mean, var, gamma, beta, eps=0.1)


@efficient_conv_bn_eval_pass.example
def linear(
    x: torch.Tensor = f32(20, 3),
    weight: torch.Tensor = f32(4, 3),
    mean: torch.Tensor = f32(4),
    var: torch.Tensor = f32(4),
) -> torch.Tensor:
    return F.batch_norm(F.linear(x, weight), mean, var, eps=9.0)


@efficient_conv_bn_eval_pass.refuses("the channels of the batch norm are not those of the weight")
def linear_over_sequences(
    x: torch.Tensor = f32(5, 4, 3),
    weight: torch.Tensor = f32(4, 3),
    mean: torch.Tensor = f32(4),
    var: torch.Tensor = f32(4),
) -> torch.Tensor:
    return F.batch_norm(F.linear(x, weight), mean, var, eps=9.0)


@efficient_conv_bn_eval_pass.refuses("not larger than the weight")
def large_weight(
    x: torch.Tensor = f32(1, 8, 3, 3),
    weight: torch.Tensor = f32(8, 8, 3, 3),
    mean: torch.Tensor = f32(8),
    var: torch.Tensor = f32(8),
) -> torch.Tensor:
    return F.batch_norm(F.conv2d(x, weight), mean, var, eps=9.0)
