"""Computes the gradients of strided 1x1 convolutions of few channels on the CPU from contiguous tensors."""

from __future__ import annotations

import torch

from eductor.graph import Bound, GraphView, Rewriter, known_equal, known_true, tensor_of
from eductor.ops.contiguous_convolution import contiguous_convolution_backward
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten

LANES = 16
"""The channels of one vector in oneDNN's kernel."""


@graph_pass(stage="lower", numerics="reassociates")
def keep_strided_convolutions_contiguous(graph: GraphView, rewrite: Rewriter) -> None:
    """Computes the gradients of strided 1x1 convolutions of few channels on the CPU from contiguous tensors.

    Inductor makes convolutions on the CPU channels-last. There oneDNN's kernel for the gradient of such a weight writes
    whole vectors of channels where there are fewer, beyond its buffer: the process dies later, or memory is damaged.

    It pays always: memory is damaged without it.
    """
    for node in graph.find(aten.convolution_backward):
        bound = graph.bind(node)
        if not isinstance(bound, Bound):
            rewrite.reject(bound.reason, node)
        elif no := _is_safe(bound):
            rewrite.reject(no, node)
        else:
            # It has the same schema.
            rewrite.replace(node, contiguous_convolution_backward.default, *node.args, **node.kwargs)


def _is_safe(bound: Bound) -> str:
    """Why the kernel stays within its buffer; empty if it may not."""
    weight = tensor_of(bound["weight"])
    if weight is None or weight.device.type != "cpu":
        return "it does not run on a CPU"
    if not all(known_equal(size, 1) for size in weight.shape[2:]):
        return "its kernel is larger than 1x1"
    if all(known_equal(step, 1) for step in bound["stride"]):
        return "its stride is 1"
    if known_true(weight.shape[1] % LANES == 0):
        return f"it has a multiple of {LANES} channels"
    return ""


def _gradients(x: torch.Tensor, weight: torch.Tensor, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = aten.convolution(x, weight, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1)
    settings = [0], [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
    return aten.convolution_backward(y, x, weight, *settings)[:2]  # type: ignore[no-any-return]


@keep_strided_convolutions_contiguous.example
def shortcut_of_three_channels(
    x: torch.Tensor = f32(1, 3, 8, 8), weight: torch.Tensor = f32(4, 3, 1, 1)
) -> tuple[torch.Tensor, torch.Tensor]:
    return _gradients(x, weight, 2)


@keep_strided_convolutions_contiguous.refuses("its stride is 1")
def projection(
    x: torch.Tensor = f32(1, 3, 8, 8), weight: torch.Tensor = f32(4, 3, 1, 1)
) -> tuple[torch.Tensor, torch.Tensor]:
    return _gradients(x, weight, 1)


@keep_strided_convolutions_contiguous.refuses("multiple of 16 channels")
def shortcut_of_whole_vectors(
    x: torch.Tensor = f32(1, 16, 4, 4), weight: torch.Tensor = f32(4, 16, 1, 1)
) -> tuple[torch.Tensor, torch.Tensor]:
    return _gradients(x, weight, 2)
