"""Inputs for a graph: made up from a seed, ordinary or awkward, for every placeholder whose type is known."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.compat import FakeTensor, number_at, other_sizes
from eductor.graph.reading.static import is_static
from eductor.graph.values.meta import UNKNOWN, value_of


@dataclass(frozen=True, slots=True)
class Kind:
    """How inputs are made up: numbers that are strewn in, the range of integers, and whether sizes are others."""

    strewn: tuple[float, ...] = ()
    integers: tuple[int, int] = (0, 2)
    other_sizes: bool = False

    def finite(self) -> Kind:
        return replace(self, strewn=tuple(x for x in self.strewn if math.isfinite(x)))


aten = torch.ops.aten

KINDS = (
    Kind(),
    Kind((0.0, -0.0, 1.0, 1.0, -1.0, 0.5, 0.5)),  # both zeros, ties, what operators treat in a way of its own
    Kind((90.0, -90.0, 1e4, -1e4), integers=(-3, 6)),
    Kind((float("nan"), float("inf"), -float("inf"), 0.0, -0.0)),  # apart, because they spread and hide the rest
)
OTHER_SIZES = Kind(other_sizes=True)


class CannotRun(Exception):
    """A graph that cannot be executed here, and why."""


def made_up(
    module: GraphModule, known: Sequence[Any | None] = (), *, finite_parameters: bool = False, finite: bool = False
) -> Iterator[list[Any]]:
    """Several lists of inputs for a graph; what is known stays as it is in each of them, but for other sizes.

    With `finite_parameters`, infinities are strewn into other inputs alone: in a sum, it is a matter of rounding order
    whether one that is a factor of all its terms makes it infinite or no number. With `finite`, into none.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    if _is_too_large(placeholders):
        raise CannotRun("made-up inputs are run on the CPU, and those of this graph would be too large")
    given = [*known, *[None] * (len(placeholders) - len(known))]
    sizes = other_sizes([value_of(p) for p in placeholders])
    kinds = (*KINDS, OTHER_SIZES) if sizes else KINDS
    for kind in (k.finite() for k in kinds) if finite else kinds:
        yield [
            make(p, kind.finite() if finite_parameters and is_static(p) else kind, sizes if kind.other_sizes else {})
            if value is None or kind.other_sizes
            else value
            for p, value in zip(placeholders, given, strict=True)
        ]


def completed(module: GraphModule, known: Sequence[Any | None]) -> list[Any]:
    """What is known, and ordinary numbers for the rest, where the graph has them; there a whole number is zero."""
    placeholders = module.graph.find_nodes(op="placeholder")
    return [_beside(p) if value is None else value for p, value in zip(placeholders, known, strict=True)]


def _beside(placeholder: Node) -> Any:
    made, like = make(placeholder, Kind(integers=(0, 1)), {}), value_of(placeholder)
    return made.to(like.device) if isinstance(made, torch.Tensor) else made


LARGEST = 100_000_000
"""So many elements the inputs of a graph of another device have at most, if they are made up."""


def _is_too_large(placeholders: Sequence[Node]) -> bool:
    tensors = [v for p in placeholders if isinstance(v := value_of(p), torch.Tensor) and v.device.type != "cpu"]
    return sum(math.prod(number_at(s, {}) or 1 for s in v.shape) for v in tensors) > LARGEST


def make(placeholder: Node, kind: Kind, sizes: Mapping[Any, int]) -> Any:
    """A value of the type of a placeholder; it depends on its name and on nothing else in the graph."""
    generator = torch.Generator().manual_seed(zlib.crc32(placeholder.name.encode()))
    value = value_of(placeholder)
    if value is UNKNOWN:
        raise CannotRun(f"the type of the input {placeholder.name} is not known")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _number(value, sizes)
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided:
        raise CannotRun(f"the input {placeholder.name} is {value.layout}")
    shape, strides = [_number(s, sizes) for s in value.shape], [_number(s, sizes) for s in value.stride()]
    read = next((user for user in placeholder.users if user.target is aten._local_scalar_dense.default), None)
    if read is not None and isinstance(value_of(read), torch.SymFloat):
        # A graph that reads a number may be compiled for that number alone.
        return torch.full(shape, number_at(value_of(read), {}), dtype=value.dtype)
    if value.dtype.is_floating_point or value.dtype.is_complex:
        filled = torch.randn(shape, generator=generator, dtype=torch.float64)
        if kind.strewn and filled.numel():
            # Each at a place of its own; in a part that is large enough, for a permutation costs as much as the tensor.
            part = filled.view(-1)[:4096]
            at = torch.randperm(part.numel(), generator=generator)[: len(kind.strewn)]
            part[at] = torch.tensor(kind.strewn, dtype=torch.float64)[: len(at)]
    else:
        filled = torch.randint(*kind.integers, shape, generator=generator)
    # On the CPU, always: what a device cannot do with made-up numbers, such as an index, ends the process there.
    made = torch.empty_strided(shape, strides, dtype=value.dtype)
    return made.copy_(filled).requires_grad_(value.requires_grad)


def fits(value: Any, placeholder: Node) -> bool:
    """Whether a value can be given for a placeholder: it is real, and of the size and type that the graph was made for."""
    wanted = value_of(placeholder)
    if isinstance(value, FakeTensor) or wanted is UNKNOWN:
        return False
    if not isinstance(value, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return isinstance(value, torch.Tensor) == isinstance(wanted, torch.Tensor)
    same = (value.dtype, value.device, value.layout) == (wanted.dtype, wanted.device, wanted.layout)
    return same and [number_at(s, {}) for s in wanted.shape] == list(value.shape)


def _number(size: Any, sizes: Mapping[Any, int]) -> Any:
    number = number_at(size, sizes)
    if number is None:
        raise CannotRun(f"the size {size} of an input depends on data")
    return number
