"""The gradient of values that a program writes through a mask, as in `x[mask] = values`, with sizes that are known.

Autograd takes `gradient[mask]`, whose size depends on the mask. But each dimension of the values has one element for each
flag that is set, or the write raises; or it is broadcast, and its gradient is a sum over the mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from eductor import compat
from eductor.errors import Unsupported
from eductor.graph.values.meta import known_equal, known_true

aten = torch.ops.aten


def gradients_of_masked_writes(*, exact: bool) -> dict[Any, Callable[..., Any]]:
    """The decomposition of the indexing that autograd calls for such values; with `exact`, it rounds as eager or refuses."""
    return {aten.index.Tensor: functools.partial(_index, exact)}


def _index(exact: bool, gradient: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    """Indexes by a mask if the running backward is that of a write; NotImplemented for all other indices."""
    given = [i for i, index in enumerate(indices) if index is not None]
    mask = indices[given[0]] if len(given) == 1 else None
    if mask is None or mask.dtype not in (torch.bool, torch.uint8) or mask.dim() == 0:
        return NotImplemented
    shape = compat.shape_of_last_gradient()
    if shape is None:
        return NotImplemented
    start, end = given[0], given[0] + mask.dim()
    rest = gradient.dim() - end
    count = shape[-rest - 1] if len(shape) > rest else 1
    if known_equal(count, 1):
        return _sum(exact, gradient, mask, start, end)
    if not known_true(count != 1):
        return NotImplemented
    places = aten.nonzero_static.default(mask, size=count).unbind(1)
    return aten.index.Tensor(gradient, [*indices[:start], *places])


def _sum(exact: bool, gradient: torch.Tensor, mask: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """The sum of the elements where a mask is set, which keeps one dimension in place of the mask's."""
    if exact:
        # Eager sums the selected elements; a trace, whose sizes cannot depend on the mask, sums zeros as well.
        raise Unsupported(
            "the gradient of a value that is written through a mask in the profile 'exact': its trace rounds differently"
        )
    flags = mask.to(gradient.device, torch.bool).reshape(*mask.shape, *(1 for _ in range(end, gradient.dim())))
    kept = torch.where(flags, gradient, 0)
    return kept.sum(list(range(start, end)), keepdim=True).flatten(start, end - 1)
