"""`eductor::contiguous_convolution_backward`: a convolution's gradients, computed from contiguous tensors.

OneDNN's weight gradient of a strided 1x1 convolution writes out of bounds for channels-last tensors of few channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eductor.ops.definition import define


def _backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *settings: Any) -> Sequence[Any]:
    given = map(_row_major, (gradient, x, weight))
    made = torch.ops.aten.convolution_backward(*given, *settings)
    form = _format(x, weight)
    return *(part if part is None else part.contiguous(memory_format=form) for part in made[:2]), made[2]


def _fake(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *settings: Any) -> Sequence[Any]:
    x_wanted, weight_wanted, bias_wanted = settings[-1]
    form = _format(x, weight)
    x_made = torch.empty_like(x, memory_format=form) if x_wanted else None
    weight_made = torch.empty_like(weight, memory_format=form) if weight_wanted else None
    return x_made, weight_made, weight.new_empty(gradient.shape[1]) if bias_wanted else None


def _row_major(x: torch.Tensor) -> torch.Tensor:
    """The tensor contiguous, with strides that say so for dimensions of one element, too."""
    return x.contiguous().view(-1).view(x.shape)


def _format(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The format of ATen's results."""
    last = torch.channels_last
    is_last = (t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (x, weight))
    return last if any(is_last) else torch.contiguous_format


_SCHEMA = str(torch.ops.aten.convolution_backward.default._schema).partition("(")[2]

contiguous_convolution_backward = define(f"contiguous_convolution_backward({_SCHEMA}", _backward, fake=_fake)
