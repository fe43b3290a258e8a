"""Inputs for a graph: made up from a seed, ordinary or awkward, for every placeholder whose type is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.compat import FakeTensor, hint_of
from eductor.graph.meta import UNKNOWN, value_of

NUMBERS = (0.0, -0.0, 1.0, 1.0, -1.0, 0.5, 0.5)
"""Strewn into inputs: both zeros, ties, and what operators treat in a way of its own."""
NO_NUMBERS = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)
"""Strewn into inputs of their own, because they spread and hide other differences."""


class CannotRun(Exception):
    """A graph that cannot be executed here, and why."""


def made_up(module: GraphModule, known: Sequence[Any | None] = ()) -> Iterator[list[Any]]:
    """Several lists of inputs for a graph; what is known stays as it is in each of them."""
    placeholders = module.graph.find_nodes(op="placeholder")
    for seed, strewn in enumerate(((), NUMBERS, NO_NUMBERS)):
        generator = torch.Generator().manual_seed(seed)
        given = [*known, *[None] * (len(placeholders) - len(known))]
        yield [
            make(p, generator, strewn) if value is None else value for p, value in zip(placeholders, given, strict=True)
        ]


def make(placeholder: Node, generator: torch.Generator, strewn: Sequence[float] = ()) -> Any:
    """A value of the type of a placeholder."""
    value = value_of(placeholder)
    if value is UNKNOWN:
        raise CannotRun(f"the type of the input {placeholder.name} is not known")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _hint(value)
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided:
        raise CannotRun(f"the input {placeholder.name} is {value.layout}")
    shape, strides = [_hint(s) for s in value.shape], [_hint(s) for s in value.stride()]
    if value.dtype.is_floating_point or value.dtype.is_complex:
        filled = torch.randn(shape, generator=generator, dtype=torch.float64)
        at = torch.randperm(filled.numel(), generator=generator)[: len(strewn)]
        filled.view(-1)[at] = torch.tensor(strewn, dtype=torch.float64)[: len(at)]
    else:
        filled = torch.randint(0, 2, shape, generator=generator)
    made = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    return made.copy_(filled).requires_grad_(value.requires_grad)


def fits(value: Any, placeholder: Node) -> bool:
    """Whether a value can be given for a placeholder: it is real, and of the size and type that the graph was made for."""
    wanted = value_of(placeholder)
    if isinstance(value, FakeTensor) or wanted is UNKNOWN:
        return False
    if not isinstance(value, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return isinstance(value, torch.Tensor) == isinstance(wanted, torch.Tensor)
    same = (value.dtype, value.device, value.layout) == (wanted.dtype, wanted.device, wanted.layout)
    return same and [hint_of(s) for s in wanted.shape] == list(value.shape)


def _hint(size: Any) -> Any:
    hint = hint_of(size)
    if hint is None:
        raise CannotRun(f"the size {size} of an input depends on data")
    return hint
