"""The fused call that computes an attention: plain data that can be run on tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor.graph import Bound, GraphView, known_equal, value_of
from eductor.passes.joint.attention.attention import Attention, value_at
from eductor.passes.joint.attention.kernels import OneKernel, may_hide_nan
from eductor.passes.joint.attention.masks import Bias, Groups
from eductor.passes.joint.attention.operands import Shaping
from eductor.passes.joint.attention.program import Slot
from eductor.passes.joint.attention.unseen_rows import with_gradients

aten = torch.ops.aten

_LARGE, _LOST = -(2.0**20), -(2.0**64)
"""Below the first bias, a row's sum of exponentials loses scores that the backward needs; below the second, all of them,
even in float64."""

_FAR = 2.0**7
"""A row whose bias is closer to zero is not shifted: half precision would round it once more."""

_EQUAL = -(2.0**126)
"""Added to scores, it absorbs them. A CUDA kernel multiplies by log2(e), which makes the least finite number infinite."""


class UnknownSize(Exception):
    """A symbolic size that no input of a region has."""


@dataclass(frozen=True, slots=True)
class Size:
    """A symbolic size: a dimension of an input, or an input that is a size itself."""

    slot: int
    dim: int | None


@dataclass(frozen=True, slots=True)
class Fused:
    """One call of torch's attention that computes a region from its inputs."""

    query: Shaping
    key: Shaping
    value: Shaping
    dtype: torch.dtype
    scale: float
    bias: Bias | None
    rows: Literal["seen", "found", "marked", "settled"]
    """How rows without a key are handled: there are none (seen), they are corrected in the result (found), marked in the
    bias so that the kernel gives eager's result, or settled before the call, which gives their queries no gradient."""
    unseen: float | None
    """The result where a row has no score at all: NaN as in eager, 0 for a safe softmax. None if there is no such row, or if
    the kernel itself gives NaN, in the gradients, too."""
    may_add_inf: bool
    """Whether a mask that is added may hide a row, so that its scores get gradients."""
    is_causal: bool
    dropout: float
    hides_nan: bool
    """Whether the kernel may mistake a row of NaN scores for one without keys, whose result is 0."""
    has_groups: bool
    sizes: tuple[int | Size, ...]
    groups: Groups
    transposed: bool
    """Whether the second product has the queries in its columns."""
    flat: int
    """The rank of the second product's result; 0 if the views after it start from the call's four dimensions."""
    after: tuple[tuple[Any, ...], ...]
    result: torch.dtype

    def __call__(self, *inputs: Any) -> torch.Tensor:
        sizes = [_resolved(size, inputs) for size in self.sizes]
        query, key, value = (
            shaping(inputs, sizes, self.groups).to(self.dtype) for shaping in (self.query, self.key, self.value)
        )
        bias = self.bias(inputs, sizes, self.groups) if self.bias else None
        unseen = share = None
        if self.bias is not None and bias is not None and self.rows != "seen":
            with torch.no_grad():
                top = bias.amax(-1, keepdim=True)
                unseen = None if self.unseen is None else top == -math.inf
            if unseen is not None and self.unseen != 0:
                added = unseen & self.bias.added(inputs, sizes, self.groups) if self.may_add_inf else None
                query, key, value, bias = with_gradients(unseen, added, (query, key, value, bias))
            if self.rows == "marked":
                bias, share = _marked(_widened(bias, key.shape[-2]), top, is_replaced=self.unseen is not None)
            elif self.rows == "settled":
                # A fully masked row has equal weights, whatever its scores are: the sum absorbs them.
                query = query * (top > _LOST)
                bias = torch.where(top == -math.inf, 0.0, bias - top)
        with OneKernel():
            out = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=self._mask(bias, key),
                dropout_p=self.dropout,
                is_causal=self.is_causal,
                scale=self.scale,
                enable_gqa=self.has_groups,
            )
        if share is not None and out.requires_grad:
            out.register_hook(partial(_multiplied, share))
        if unseen is not None:
            out = torch.where(unseen, 0.0 if self.unseen is None else self.unseen, out)
        if self.hides_nan:
            out = out + _nan_rows(query, key, self.has_groups).to(out.dtype)
        return self._shaped(out.to(self.result), inputs)

    def _mask(self, bias: torch.Tensor | None, key: torch.Tensor) -> torch.Tensor | None:
        if bias is None:
            return None
        if bias.dtype != self.dtype and self.rows != "marked":
            bias = bias.clamp(min=torch.finfo(self.dtype).min)
        return _widened(bias.to(self.dtype), key.shape[-2])

    def _shaped(self, out: torch.Tensor, inputs: Sequence[Any]) -> torch.Tensor:
        """The result in the shape of the region's result, contiguous."""
        out = out.transpose(-1, -2) if self.transposed else out
        if self.flat:
            out = out.reshape((-1, *out.shape[-2:]) if self.flat == 3 else tuple(out.shape[-2:]))
        for op, *args in self.after:
            given = [inputs[x.index] if isinstance(x, Slot) else x for x in args]
            out = out.reshape(given) if op == "reshape" else out.permute(given)
        return out.contiguous()


def _widened(bias: torch.Tensor, keys: Any) -> torch.Tensor:
    """A bias with a number for each key: they are counted, and a CUDA kernel requires contiguous rows."""
    return bias if known_equal(bias.shape[-1], keys) else bias.expand(-1, -1, -1, keys)


def _marked(bias: torch.Tensor, top: torch.Tensor, *, is_replaced: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A bias with which a kernel gives eager's result for fully masked rows too, and a factor of their gradients.

    If finite numbers mask a row, the keys with the largest share it equally: the sum absorbs their scores. The kernel's sum
    of exponentials absorbs the logarithm of their count in turn: its backward takes each of their weights for 1, so that
    the gradient must be divided by the count. If -inf masks a row, the difference is NaN, as in eager, or, where the result
    is replaced, 0.
    """
    with torch.no_grad():
        shifted = bias - torch.where(top.abs() > _FAR, top, 0.0)
        if is_replaced:
            shifted = torch.where(top == -math.inf, 0.0, shifted)
        is_hidden = (top <= _LOST) & (top > -math.inf)
        are_equal = bias == top
        marked = torch.where(is_hidden, torch.where(are_equal, _EQUAL, -math.inf), shifted)
        count = are_equal.sum(-1, keepdim=True, dtype=bias.dtype)
        share = torch.where(is_hidden, count.reciprocal(), 1.0)
    if bias.requires_grad:
        marked = _Substitute.apply(bias, marked)  # type: ignore[no-untyped-call]
    return marked, share


class _Substitute(torch.autograd.Function):
    """Replaces a value by another one, whose gradient the first one gets."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return other

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return *gradients, None


def _multiplied(share: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return (gradient * share).to(gradient.dtype)


def _nan_rows(query: torch.Tensor, key: torch.Tensor, has_groups: bool) -> torch.Tensor:
    """NaN for each row of scores with a NaN, which one in the query or in any key causes; 0 for the others."""
    of_keys = key.isnan().flatten(-2).any(-1)[..., None, None]
    if has_groups:
        of_keys = of_keys.repeat_interleave(query.shape[1] // key.shape[1], 1)
    found = query.isnan().any(-1, keepdim=True) | of_keys
    return torch.where(found, math.nan, 0.0)


def _resolved(size: int | Size, inputs: Sequence[Any]) -> Any:
    if isinstance(size, int):
        return size
    return inputs[size.slot] if size.dim is None else inputs[size.slot].shape[size.dim]


def fused(
    graph: GraphView,
    found: Attention,
    after: Sequence[Node],
    output: Node,
    inputs: tuple[Node, ...],
    *,
    training: bool,
) -> Fused:
    query, key, value = (
        Shaping(inputs.index(o.node), o.swapped, o.order, of_scores=o is not found.value) for o in found.operands
    )
    wide = torch.promote_types(found.dtype, torch.float32)
    bias = found.masks.bias(inputs.index, found.axes, wide)
    hides = bias is not None and found.masks.least == -math.inf
    is_hidden = bias is not None and found.masks.least < _LARGE
    is_cuda = value_at(found.key.node).is_cuda
    # With dropout, the backward of a CUDA kernel gives NaN for marked rows.
    can_mark = not found.masks.fills and not found.dropout if training else is_cuda
    marks = is_hidden and found.dtype != torch.float16 and can_mark
    unseen = 0.0 if found.softmax.is_safe else None if marks and not (training and found.masks.replaces) else math.nan
    settles = is_hidden and (training or wide != found.dtype)
    product = value_at(found.weights.product)
    is_shaped, steps = _steps(graph, found, after, inputs)
    return Fused(
        query,
        key,
        value,
        found.dtype,
        found.scale * math.prod(o.factor for o in found.operands[:2]),
        bias,
        "marked" if marks else "settled" if settles else "found" if hides else "seen",
        unseen if hides else None,
        found.masks.may_add_inf,
        found.masks.is_causal,
        found.dropout,
        may_hide_nan(value_at(found.key.node).device, found.axes.size(found.groups[3])),
        found.key.repeats > 1,
        tuple(_size(size, inputs) for size in found.axes.sizes),
        found.groups,
        not found.weights.is_left,
        0 if is_shaped else product.dim(),
        steps,
        value_at(output).dtype,
    )


def _steps(
    graph: GraphView, found: Attention, after: Sequence[Node], inputs: tuple[Node, ...]
) -> tuple[bool, tuple[tuple[Any, ...], ...]]:
    """Whether the views after the product start from the call's four dimensions, and those views."""
    product = value_at(found.weights.product)
    four = [found.axes.size(group) for group in found.groups[:2]] + list(product.shape[-2:])
    is_shaped = bool(after) and known_equal(list(value_at(after[0]).shape), four)
    steps: list[tuple[Any, ...]] = []
    for node in after[1:] if is_shaped else after:
        bound = graph.bind(node)
        assert isinstance(bound, Bound)
        if bound.packet is aten.clone:
            continue
        rank = value_at(node).dim()
        order = _order(bound, rank)
        if order is not None:
            steps.append(("permute", *order))
        else:
            steps.append(("reshape", *_shape_arguments(node, bound, inputs)))
    return is_shaped, tuple(steps)


def _order(bound: Bound, rank: int) -> list[int] | None:
    if bound.packet is aten.permute:
        return [d % rank for d in bound["dims"]]
    if bound.packet in (aten.transpose, aten.t, aten.mT):
        order = list(range(rank))
        a, b = (bound["dim0"], bound["dim1"]) if bound.packet is aten.transpose else (-1, -2)
        order[a], order[b] = order[b], order[a]
        return order
    return None


def _shape_arguments(node: Node, bound: Bound, inputs: tuple[Node, ...]) -> list[Any]:
    given = bound.get("size", bound.get("shape"))
    if given is None:
        return [-1 if not isinstance(s, int) else s for s in value_at(node).shape]
    return [Slot(inputs.index(s)) if isinstance(s, Node) else s for s in given]


def _size(size: Any, inputs: tuple[Node, ...]) -> int | Size:
    if isinstance(size, int):
        return size
    for i, node in enumerate(inputs):
        value = value_of(node)
        if isinstance(value, torch.SymInt) and known_equal(value, size):
            return Size(i, None)
        if isinstance(value, torch.Tensor):
            for d, s in enumerate(value.shape):
                if known_equal(s, size):
                    return Size(i, d)
    raise UnknownSize(str(size))
