"""Samples from a softmax without computing it: argmax(softmax(l) / e) is argmax(l - log(e))."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch.fx import Node

from eductor.cost import device_of
from eductor.graph import Bound, GraphView, No, Rewriter, known_equal, tensor_of, value_of
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten

_LIKE = (aten.empty_like, aten.zeros_like, aten.ones_like)
"""The operators that read only the shape of their operand."""


@graph_pass(stage="pre_grad", numerics="reassociates")
def apply_gumbel_max_trick_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Samples from a softmax without computing it: argmax(softmax(l) / e) is argmax(l - log(e)).

    The softmax divides a row by one number, on which the argmax does not depend. The draws `e` stay the same, and the
    same element is picked unless two differ only by rounding. The softmax of a row with a NaN or an infinity is NaN:
    there the first element is picked, as before.

    It pays on an engine that fuses, where nothing else needs the softmax: the row is no longer summed.
    """
    for pick in graph.find(aten.argmax):
        sample = _sample(graph, pick)
        if sample is None:
            continue
        verdict = _may_rewrite(graph, sample)
        if verdict and not device_of(value_of(sample.softmax).device, context.options).fuses:
            verdict = No("it does not pay: the engine does not fuse elementwise calls")
        if not verdict:
            rewrite.reject(verdict, pick, sample.softmax)
            continue
        for user in [u for u in sample.softmax.users if u is not sample.ratio]:
            _read_shape_of_logits(graph, rewrite, user, sample)
        _pick_largest_score(rewrite, sample)
        if sample.ratio in graph and not sample.ratio.users:
            rewrite.erase(sample.ratio)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The parts of `argmax(softmax(logits) / noise)`."""

    pick: Node
    ratio: Node
    softmax: Node
    logits: Node
    noise: Node


def _sample(graph: GraphView, pick: Node) -> _Sample | None:
    picked = graph.call(pick, aten.argmax)
    divided = graph.call(picked["self"], aten.div, aten.div_) if picked is not None else None
    softmax = graph.call(divided["self"], aten.softmax) if divided is not None else None
    if picked is None or divided is None or softmax is None or divided.get("rounding_mode") is not None:
        return None
    found = _Sample(pick, picked["self"], divided["self"], softmax["self"], divided["other"])
    are_tensors = all(tensor_of(node) is not None for node in (found.logits, found.softmax, found.noise))
    return found if are_tensors and isinstance(found.noise, Node) else None


def _may_rewrite(graph: GraphView, sample: _Sample) -> Literal[True] | No:
    logits, softmax, noise = map(value_of, (sample.logits, sample.softmax, sample.noise))
    dim, softmax_dim = graph.bound(sample.pick)["dim"], graph.bound(sample.softmax)["dim"]
    draw, rank = _draw(graph, sample), max(softmax.dim(), 1)
    drawn = graph.call(draw, aten.exponential_, aten.exponential)
    if draw is None or drawn is None:
        return No(f"{sample.noise.name} is not known to be drawn from an exponential distribution")
    if drawn["lambd"] != 1:
        return No("the rate of the draws is not 1")
    if noise.dtype is torch.float16:
        return No("draws in float16 can be zero")
    if not known_equal(tuple(softmax.shape), tuple(noise.shape)):
        return No("the draws do not have the shape of the softmax")
    if (dim is None and rank > 1) or (dim or 0) % rank != softmax_dim % rank:
        return No("the softmax is along another dimension than the argmax")
    if len(sample.ratio.users) > 1:
        return No(f"{sample.ratio.name} is used elsewhere")
    others = [u for u in sample.softmax.users if u is not sample.ratio]
    needy = next((u for u in others if not graph.is_call(u, *_LIKE)), None)
    if needy is not None:
        return No(f"it does not pay: {needy.name} needs the softmax as well")
    if others and not known_equal(softmax.stride(), logits.stride()):
        return No("a tensor with the strides of the softmax would have those of its operand")
    logits_stay = graph.effects.unwritten([sample.logits], sample.softmax, sample.pick)
    return logits_stay and graph.effects.unwritten([sample.noise], draw.next, sample.pick)


def _draw(graph: GraphView, sample: _Sample) -> Node | None:
    """The call that fills the noise: itself, or one that writes it before it is used."""
    if graph.call(sample.noise, aten.exponential_, aten.exponential):
        return sample.noise
    return next((u for u in sample.noise.users if u < sample.ratio and graph.call(u, aten.exponential_)), None)


def _read_shape_of_logits(graph: GraphView, rewrite: Rewriter, user: Node, sample: _Sample) -> None:
    """`empty_like(softmax(l))` is `empty_like(l)`, of the softmax's dtype."""
    bound = graph.bound(user)
    arguments = {**bound.arguments, "self": sample.logits, "dtype": bound["dtype"] or value_of(sample.softmax).dtype}
    args, kwargs = Bound(bound.op, arguments, bound.given | {"dtype"}).call()
    rewrite.update(user, target=bound.op, args=args, kwargs=kwargs)


def _pick_largest_score(rewrite: Rewriter, sample: _Sample) -> None:
    pick, bound = sample.pick, rewrite.view.bound(sample.pick)
    dim, keepdim = bound["dim"] or 0, bound["keepdim"]
    dtypes = (value_of(sample.softmax).dtype, value_of(sample.noise).dtype)
    wide = functools.reduce(torch.promote_types, dtypes, torch.float32)

    def widened(node: Node) -> Node:
        return node if value_of(node).dtype is wide else rewrite.insert(aten.to.dtype, node, wide, before=pick)

    log = rewrite.insert(aten.log, widened(sample.noise), before=pick)
    score = rewrite.insert(aten.sub, widened(sample.logits), log, before=pick)
    best = rewrite.insert(aten.amax, score, [dim], keepdim, before=pick)
    is_number = rewrite.insert(aten.lt, best, math.inf, before=pick)
    index = rewrite.insert(aten.argmax, score, dim, keepdim, before=pick)
    rewrite.replace(pick, aten.where.ScalarOther, is_number, index, 0)


@apply_gumbel_max_trick_pass.example
def sample(logits: torch.Tensor = f32(4, 7)) -> torch.Tensor:
    probabilities = torch.softmax(logits / 0.8, dim=-1)
    noise = torch.empty_like(probabilities).exponential_()
    return torch.argmax(probabilities / noise, dim=-1, keepdim=True)


@apply_gumbel_max_trick_pass.example
def sample_in_place(logits: torch.Tensor = f32(4, 7)) -> torch.Tensor:
    probabilities = logits.softmax(1, dtype=torch.float32)
    noise = torch.empty(4, 7)
    noise.exponential_(1)
    return probabilities.div_(noise).argmax(dim=1)


@apply_gumbel_max_trick_pass.refuses("along another dimension")
def softmax_of_columns(logits: torch.Tensor = f32(4, 7)) -> torch.Tensor:
    probabilities = torch.softmax(logits, dim=0)
    return torch.argmax(probabilities / torch.empty_like(probabilities).exponential_(), dim=-1)


@apply_gumbel_max_trick_pass.refuses("the rate of the draws")
def draws_of_another_rate(logits: torch.Tensor = f32(4, 7)) -> torch.Tensor:
    probabilities = torch.softmax(logits, dim=-1)
    return torch.argmax(probabilities / torch.empty_like(probabilities).exponential_(2.0), dim=-1)


@apply_gumbel_max_trick_pass.refuses("needs the softmax as well")
def probabilities_that_are_returned(logits: torch.Tensor = f32(4, 7)) -> tuple[torch.Tensor, torch.Tensor]:
    probabilities = torch.softmax(logits, dim=-1)
    return torch.argmax(probabilities / torch.empty_like(probabilities).exponential_(), dim=-1), probabilities
