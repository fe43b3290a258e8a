"""Combines all masks into one bias: what was added to the scores, and -inf or the least number where it replaces them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, GraphView, No, known_equal, tensor_of
from eductor.passes.joint.attention.axes import Axes, Dims
from eductor.passes.joint.attention.causal import is_lower_triangle
from eductor.passes.joint.attention.numbers import bounds_of, number_of, rounded
from eductor.passes.joint.attention.scores import Added, Filled, Moved, Scaled, Scores

aten = torch.ops.aten
_NEVER = -math.inf

Groups = tuple[tuple[int, ...], ...]
"""The axes of each of the four dimensions of the call: batch, head, query, key."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How a mask maps to the dimensions of the scores, so that it can be rearranged to those of the call."""

    dims: Dims
    full: frozenset[int]
    """The axes along which it varies."""
    repeated: tuple[int, ...]
    """The dimensions along which it was expanded: one element of each is enough."""


@dataclass(frozen=True, slots=True)
class Term:
    """One step of the bias: a mask that is added, or (with a value) a condition that selects where the value replaces the bias."""

    mask: int
    """Its index among the inputs."""
    spread: Spread
    value: float | None = None
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Bias:
    """All masks of an attention as one tensor, computed in a dtype; a number among the terms scales those before it."""

    terms: tuple[Term | float, ...]
    dtype: torch.dtype

    def __call__(self, values: Sequence[Any], sizes: Sequence[Any], groups: Groups) -> torch.Tensor:
        """What is added to the scaled scores, with four dimensions."""
        bias: torch.Tensor | None = None
        for term in self.terms:
            if isinstance(term, float):
                bias = bias * term if bias is not None else None
                continue
            mask = spread_out(values[term.mask], term.spread, sizes, groups)
            if term.value is None:
                bias = mask.to(self.dtype) if bias is None else bias + mask.to(self.dtype)
            else:
                kept = mask if term.keeps else mask.logical_not()
                before = torch.zeros((), dtype=self.dtype, device=mask.device) if bias is None else bias
                bias = torch.where(kept, before, self._lowest(term.value))
        assert bias is not None
        return bias

    def added(self, values: Sequence[Any], sizes: Sequence[Any], groups: Groups) -> Any:
        """The scores that no condition replaced, with four dimensions; True for all of them."""
        found: Any = True
        for term in self.terms:
            if isinstance(term, Term) and term.value is not None:
                mask = spread_out(values[term.mask], term.spread, sizes, groups)
                kept = mask if term.keeps else mask.logical_not()
                found = found & kept
        return found

    def _lowest(self, value: float) -> float:
        return value if value == _NEVER else torch.finfo(self.dtype).min


@dataclass(frozen=True, slots=True)
class Masks:
    """The masks of the scores: none, the causal mask, or a bias computed from these steps."""

    is_causal: bool = False
    steps: tuple[Scaled | Added | Filled, ...] = ()
    least: float = 0.0
    """A lower bound of the bias."""
    may_add_inf: bool = False
    """Whether an added mask may be -inf somewhere."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(s.mask if isinstance(s, Added) else s.condition for s in self.steps if not isinstance(s, Scaled))

    @property
    def fills(self) -> bool:
        """Whether a finite number replaces scores: unlike an added one, it stops their gradient."""
        return any(isinstance(step, Filled) and step.value != _NEVER for step in self.steps)

    @property
    def replaces(self) -> bool:
        """Whether anything replaces scores, which stops their gradient, and with it NaN."""
        return any(isinstance(step, Filled) for step in self.steps)

    def bias(self, slot: Callable[[Node], int], axes: Axes, dtype: torch.dtype) -> Bias | None:
        """The bias in terms of the inputs of a region."""
        if self.is_causal or not self.nodes:
            return None
        terms = [s.factor if isinstance(s, Scaled) else _term(s, slot, axes) for s in self.steps]
        return Bias(tuple(terms), dtype)


def _term(step: Added | Filled, slot: Callable[[Node], int], axes: Axes) -> Term:
    if isinstance(step, Added):
        return Term(slot(step.mask), _spread(step.mask, axes.at[step.node]))
    return Term(slot(step.condition), _spread(step.condition, axes.at[step.node]), step.value, step.keeps)


def _spread(node: Node, dims: Dims) -> Spread:
    mask = tensor_of(node)
    assert mask is not None
    offset = len(dims) - mask.dim()
    wide = [d for d, size in enumerate(mask.shape) if not known_equal(size, 1)]
    repeated = [d for d in wide if known_equal(mask.stride(d), 0)]
    full = frozenset(a for d in wide if d not in repeated for a in dims[offset + d])
    return Spread(dims, full, tuple(repeated))


def masks_of(graph: GraphView, scores: Scores, axes: Axes, dtype: torch.dtype) -> Masks | No:
    """All masks between the product and the softmax, or why they cannot be one bias."""
    steps = tuple(step for step in scores.steps if not isinstance(step, Moved))
    masks = [step for step in steps if not isinstance(step, Scaled)]
    if not masks:
        return Masks()
    if len(masks) == 1 and _is_causal(graph, masks[0], axes):
        return Masks(is_causal=True, steps=steps)
    low: float = 0.0
    for step in steps:
        verdict = _may_scale(low, step.factor) if isinstance(step, Scaled) else _may_read(step, axes)
        if not verdict:
            return verdict
        low = low * abs(step.factor) if isinstance(step, Scaled) else _lower(graph, step, low, dtype)
        low = rounded(low, dtype)
    added = [bounds_of(graph, step.mask) for step in steps if isinstance(step, Added)]
    return Masks(steps=steps, least=low, may_add_inf=any(b is None or b[0] == _NEVER for b in added))


def _lower(graph: GraphView, step: Added | Filled, low: float, dtype: torch.dtype) -> float:
    """The least value of the bias after a step, -inf if it is not known."""
    if isinstance(step, Filled):
        return min(low, _NEVER if step.value == _NEVER else torch.finfo(dtype).min)
    bounds = bounds_of(graph, step.mask)
    return _NEVER if bounds is None else low + bounds[0]


def _may_scale(low: float, factor: float) -> Literal[True] | No:
    """Whether a number that masks still masks after scaling."""
    if factor < 0 and low < 0:
        return No("masked scores are scaled by a negative number")
    if -math.inf < low < -1e30 and factor != 1:
        return No("masked scores are scaled after they were set to the least number")
    return True


def _may_read(step: Added | Filled, axes: Axes) -> Literal[True] | No:
    node = step.mask if isinstance(step, Added) else step.condition
    mask = tensor_of(node)
    if mask is None or mask.is_complex():
        return No(f"the mask {node.name} is not a real tensor", node)
    if isinstance(step, Filled) and mask.dtype is not torch.bool:
        return No(f"the mask {node.name} is not boolean", node)
    dims = axes.at[step.node]
    for size, parts in zip(reversed(mask.shape), reversed(dims), strict=False):
        if not known_equal(size, 1) and not known_equal(size, axes.size(parts)):
            return No(f"it is not known along which dimensions the mask {node.name} is broadcast", node)
    return True


def _is_causal(graph: GraphView, step: Added | Filled, axes: Axes) -> bool:
    """Whether a mask is exactly causal: each query sees the keys up to its own position."""
    found = (step.condition, step.keeps) if isinstance(step, Filled) else _as_condition(graph, step.mask)
    dims = axes.at[step.node]
    in_place = len(dims) >= 2 and dims[-2] == axes.large(axes.queries) and dims[-1] == axes.large((axes.key,))
    return found is not None and in_place and is_lower_triangle(graph, found[0], holds=found[1])


def _as_condition(graph: GraphView, mask: Node) -> tuple[Node, bool] | None:
    """An added mask that is 0 where a condition holds (or fails), and masks elsewhere."""
    bound, tensor = graph.bind(mask) if mask.op == "call_function" else None, tensor_of(mask)
    if not isinstance(bound, Bound) or tensor is None or not tensor.dtype.is_floating_point:
        return None
    if bound.packet is aten.where:
        values = number_of(graph, bound["self"]), number_of(graph, bound["other"])
        condition = bound["condition"]
    elif bound.packet is aten.masked_fill:
        values = number_of(graph, bound["value"]), number_of(graph, bound["self"])
        condition = bound["mask"]
    elif bound.packet in (aten.view, aten.unsqueeze, aten.expand):
        source = tensor_of(bound["self"])
        same = source is not None and known_equal(list(source.shape[-2:]), list(tensor.shape[-2:]))
        return _as_condition(graph, bound["self"]) if same else None
    else:
        return None
    least = torch.finfo(tensor.dtype).min
    for keeps, (kept, hidden) in ((True, values), (False, values[::-1])):
        if kept == 0 and hidden is not None and hidden <= least:
            return condition, keeps
    return None


def spread_out(mask: torch.Tensor, how: Spread, sizes: Sequence[Any], groups: Groups) -> torch.Tensor:
    """A mask in the dimensions of the call, kept broadcast where possible."""
    for d in how.repeated:
        mask = mask.narrow(d, 0, 1)

    def lengths(axes: Sequence[int], full: Collection[int]) -> list[Any]:
        return [sizes[a] if a in full else 1 for a in axes]

    order = [a for parts in how.dims for a in parts]
    wanted = [a for group in groups for a in group]
    mixed = {a for group in groups if how.full & set(group) for a in group}
    mask = reshaped(mask, lengths(order, how.full))
    mask = permuted(mask, [order.index(a) for a in wanted if a in order])
    mask = reshaped(mask, lengths(wanted, how.full))
    mask = mask.expand(lengths(wanted, mixed)) if mixed > how.full else mask
    return reshaped(mask, [math.prod(lengths(group, mixed)) for group in groups])


def copied(masks: Masks, axes: Axes, groups: Groups) -> int:
    """How many masks must be copied because they vary along only a part of a dimension of the call."""
    count = 0
    for step in masks.steps:
        if not isinstance(step, Scaled):
            full = _spread(step.mask if isinstance(step, Added) else step.condition, axes.at[step.node]).full
            count += sum(0 < len(full & set(group)) < len(group) for group in groups)
    return count


def reshaped(value: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """A tensor in another shape; itself where that is its own."""
    return value if known_equal(list(value.shape), list(shape)) else value.reshape(shape)


def permuted(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A tensor with its dimensions in another order; itself where that is its own."""
    return value if list(order) == sorted(order) else value.permute(list(order))
