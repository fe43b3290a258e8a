"""Folds a batch norm in evaluation mode into the weights before it: once, for inference, or in the graph, to train them."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from eductor.cost import bytes_of
from eductor.graph import GraphView, No, Rewriter, tensor_of
from eductor.graph.reading.static import is_static, mark_parameters, pack
from eductor.passes.pre_grad.batch_norm_folding import CONVOLUTIONS, TRANSPOSED, Fold, folds
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates", inference_only=True)
def fuse_conv_bn(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Folds a batch norm in evaluation mode into the convolution before it: the weights are folded once and kept.

    Training updates the running statistics without torch counting the writes, so each call compares them with those
    that were folded. On the CPU this costs next to nothing; on another device each call would have to synchronize.

    It pays always: the batch norm is computed in the first call alone.
    """
    for fold in folds(graph, rewrite, *CONVOLUTIONS, *TRANSPOSED):
        if not (verdict := _may_keep(fold, context)):
            rewrite.reject(verdict, fold.norm)
            continue
        for made in fold.apply(rewrite):
            pack(made, uncounted=fold.statistics)


def _may_keep(fold: Fold, context: Context) -> Literal[True] | No:
    if not context.packs:
        return No("folded weights would not be kept from call to call")
    other = next((node for node in fold.parameters if not is_static(node)), None)
    if other is not None:
        return No(f"{other.name} is not a parameter or a buffer", other)
    for node in fold.statistics:
        value = tensor_of(node)
        if value is None or value.device.type != "cpu":
            return No(f"{node.name} is not in CPU memory, where each call can check whether it changed", node)
    return True


@fuse_conv_bn.example(prepare=mark_parameters)
def convolution(
    x: torch.Tensor = f32(2, 3, 6, 6),
    weight: torch.Tensor = f32(4, 3, 3, 3),
    mean: torch.Tensor = f32(4),
    var: torch.Tensor = f32(4),
    gamma: torch.Tensor = f32(4),
    beta: torch.Tensor = f32(4),
) -> torch.Tensor:
    return F.batch_norm(F.conv2d(x, weight, padding=1), mean, var, gamma, beta, eps=9.0)


@fuse_conv_bn.example(prepare=mark_parameters)
def transposed_in_groups(
    x: torch.Tensor = f32(2, 4, 6),
    weight: torch.Tensor = f32(4, 3, 3),
    bias: torch.Tensor = f32(6),
    mean: torch.Tensor = f32(6),
    var: torch.Tensor = f32(6),
) -> torch.Tensor:
    return F.batch_norm(F.conv_transpose1d(x, weight, bias, groups=2), mean, var, eps=9.0)


@fuse_conv_bn.refuses("is not a parameter or a buffer")
def statistics_of_the_input(
    x: torch.Tensor = f32(2, 3, 6, 6),
    weight: torch.Tensor = f32(4, 3, 3, 3),
    mean: torch.Tensor = f32(4),
    var: torch.Tensor = f32(4),
) -> torch.Tensor:
    return F.batch_norm(F.conv2d(x, weight), mean, var, eps=9.0)


@fuse_conv_bn.refuses("is used elsewhere", prepare=mark_parameters)
def used_before_the_norm(
    x: torch.Tensor = f32(2, 3, 6, 6),
    weight: torch.Tensor = f32(4, 3, 3, 3),
    mean: torch.Tensor = f32(4),
    var: torch.Tensor = f32(4),
) -> torch.Tensor:
    y = F.conv2d(x, weight)
    return F.batch_norm(y, mean, var, eps=9.0) + y


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
