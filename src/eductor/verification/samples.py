"""Inputs for a graph: those of the user, tracked through a compile; and synthetic ones, ordinary and awkward, from a seed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.autograd.captured import Captured
from eductor.compat import FakeTensor, number_at, other_sizes
from eductor.graph.reading.static import is_static
from eductor.graph.snapshot import copy_of
from eductor.graph.values.meta import UNKNOWN, value_of
from eductor.pipeline.instruments import PassRun, StageRun
from eductor.verification.execution import observe


@dataclass(frozen=True, slots=True)
class InputKind:
    """A kind of synthetic inputs: inserted numbers, the range of integers, and whether sizes differ."""

    strewn: tuple[float, ...] = ()
    integers: tuple[int, int] = (0, 2)
    other_sizes: bool = False

    def finite(self) -> InputKind:
        return replace(self, strewn=tuple(x for x in self.strewn if math.isfinite(x)))


aten = torch.ops.aten

KINDS = (
    InputKind(),
    InputKind((0.0, -0.0, 1.0, 1.0, -1.0, 0.5, 0.5)),  # both zeros, ties, special cases of operators
    InputKind((90.0, -90.0, 1e4, -1e4), integers=(-3, 6)),
    InputKind(
        (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)
    ),  # separate, because they propagate and hide the rest
)
OTHER_SIZES = InputKind(other_sizes=True)


class CannotRun(Exception):
    """A graph that cannot be executed here, and why."""


def made_up(
    module: GraphModule, known: Sequence[Any | None] = (), *, finite_parameters: bool = False, finite: bool = False
) -> Iterator[list[Any]]:
    """Several lists of inputs for a graph, with known values in each, except with other sizes.

    With `finite_parameters`, only other inputs contain infinities: in a sum, it depends on the order of rounding whether an
    infinite factor of all terms makes it infinite or NaN. With `finite`, none do.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    if _is_too_large(placeholders):
        raise CannotRun("synthetic inputs run on the CPU, and those of this graph would be too large")
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
    """The known values, with ordinary numbers for the rest on the graph's device, and zeros for integers."""
    placeholders = module.graph.find_nodes(op="placeholder")
    return [_beside(p) if value is None else value for p, value in zip(placeholders, known, strict=True)]


def _beside(placeholder: Node) -> Any:
    made, like = make(placeholder, InputKind(integers=(0, 1)), {}), value_of(placeholder)
    return made.to(like.device) if isinstance(made, torch.Tensor) else made


LARGEST = 100_000_000
"""The most elements of synthetic inputs for a graph of another device."""


def _is_too_large(placeholders: Sequence[Node]) -> bool:
    tensors = [v for p in placeholders if isinstance(v := value_of(p), torch.Tensor) and v.device.type != "cpu"]
    return sum(math.prod(number_at(s, {}) or 1 for s in v.shape) for v in tensors) > LARGEST


def make(placeholder: Node, kind: InputKind, sizes: Mapping[Any, int]) -> Any:
    """A value of a placeholder's type, which depends only on its name."""
    generator = torch.Generator().manual_seed(zlib.crc32(placeholder.name.encode()))
    value = value_of(placeholder)
    if value is UNKNOWN:
        raise CannotRun(f"the type of the input {placeholder.name} is unknown")
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
            # At distinct positions; only in a part, as a permutation costs as much as the tensor.
            part = filled.view(-1)[:4096]
            at = torch.randperm(part.numel(), generator=generator)[: len(kind.strewn)]
            part[at] = torch.tensor(kind.strewn, dtype=torch.float64)[: len(at)]
    else:
        filled = torch.randint(*kind.integers, shape, generator=generator)
    # Always on the CPU: an invalid synthetic index would crash the process on a device.
    made = torch.empty_strided(shape, strides, dtype=value.dtype)
    return made.copy_(filled).requires_grad_(value.requires_grad)


def fits(value: Any, placeholder: Node) -> bool:
    """Whether a value fits a placeholder: real, and of the size and type that the graph expects."""
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


class UserInputs:
    """Inputs for each graph of a compile, from those of the captured graph. Held only during the compile."""

    def __init__(self, inputs: Sequence[Any] = ()) -> None:
        self._by_hand = list(inputs)
        self._captured: list[Any] = []
        self._primals: list[Any] = []
        self._forward: GraphModule | None = None
        self._values: dict[str, Any] | None = None

    def before_stage(self, run: StageRun) -> None:
        if run.name == "pre_grad":
            self._captured = _numbers(run.inputs)
        elif run.name == "autograd":
            self._primals = _numbers([*Captured(run.module).held, *run.inputs])
        elif run.name == "post_grad" and run.graph.role == "forward":
            self._forward, self._values = GraphModule(run.module, copy_of(run.module.graph)), None

    def after_stage(self, run: StageRun) -> None:
        if run.name == "link":
            self._captured, self._primals, self._forward, self._values = [], [], None, None

    def inputs(self, run: PassRun, module: GraphModule) -> Iterator[list[Any]]:
        """The user's inputs where they fit, completed with synthetic tangents; then synthetic inputs."""
        known = self._known(run, module)
        if any(x is not None for x in known):
            yield completed(module, known)
        numbers = [None if isinstance(x, torch.Tensor) else x for x in known]
        contract = run.step.load().contract
        yield from made_up(module, numbers, finite_parameters=contract.numerics != "exact", finite=contract.finite_only)

    def _known(self, run: PassRun, module: GraphModule) -> list[Any]:
        placeholders = module.graph.find_nodes(op="placeholder")
        role = run.context.graph.role
        if self._by_hand:
            found = self._by_hand
        elif role == "backward":
            found = [self._saved().get(p.name) for p in placeholders]
        else:
            given = self._captured if role == "captured" else self._primals
            found = [*given, *[None] * (len(placeholders) - len(given))]
        if len(found) != len(placeholders):
            return []
        return [x if x is not None and fits(x, p) else None for x, p in zip(found, placeholders, strict=True)]

    def _saved(self) -> dict[str, Any]:
        """The forward's values for the user's inputs, by the names of the backward's placeholders."""
        if self._values is None:
            self._values = {}
            if self._forward is not None:
                placeholders = self._forward.graph.find_nodes(op="placeholder")
                names = dict(zip((p.name for p in placeholders), self._primals, strict=False))
                try:
                    self._values = names | observe(self._forward, self._primals, keep=True).values
                except Exception:  # the graph does not take overlapping inputs
                    self._values = {}
        return self._values


def _numbers(inputs: Sequence[Any]) -> list[Any]:
    """The inputs with symbolic sizes replaced by their hints."""
    return [number_at(x, {}) for x in inputs]
