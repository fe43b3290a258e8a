"""Computes the maximum and the sum of a softmax in one pass over its input."""

from __future__ import annotations

import operator
from typing import Literal

import torch

from eductor import ops
from eductor.graph import GraphView, No, Rewriter, value_of
from eductor.patterns import ANY, Match, const, op, outputs, pattern_pass, var
from eductor.pipeline.base import f32

aten = torch.ops.aten


@pattern_pass(stage="post_grad", numerics="reassociates", devices="cuda", on=False)
def prepare_softmax() -> None:
    """Computes the maximum and the sum of a softmax in one pass over its input.

    The engine's kernel corrects the sum whenever it meets a larger number. The rest of the softmax stays as it is.

    It pays for rows that do not stay in a cache: the input is read once less.
    """


_LARGEST = op(aten.amax, var("x"), const("dim"), True, users=ANY)
_POWER = op(aten.exp, op(aten.sub, var("x"), _LARGEST, users=ANY), users=ANY)
_PARTS = outputs(_LARGEST, op(aten.sum, _POWER, const("dim"), True))


def check(match: Match) -> Literal[True] | No:
    """Whether both reduce one dimension of floating-point numbers."""
    largest = value_of(match.outputs[0])
    if not largest.dtype.is_floating_point:
        return No("it is no maximum of floating-point numbers")
    return True if len(match["dim"]) == 1 and largest.dim() else No("it is not along one dimension that stays")


@prepare_softmax.rule(_PARTS, check=check)
def maximum_and_sum(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    largest, total = match.outputs
    assert largest is not None
    assert total is not None
    dim = match["dim"][0] % value_of(largest).dim()
    both = rewrite.insert(ops.fused.online_softmax, match["x"], dim, before=largest)
    rewrite.replace(largest, operator.getitem, both, 0)
    rewrite.replace(total, operator.getitem, both, 1)


@prepare_softmax.example
def softmax_as_it_is_taken_apart(x: torch.Tensor = f32(4, 9)) -> torch.Tensor:
    power = (x - x.amax(-1, keepdim=True)).exp()
    return power / power.sum(-1, keepdim=True)


@prepare_softmax.refuses("the pattern wants aten.sum to use it")
def maximum_alone(x: torch.Tensor = f32(4, 9)) -> torch.Tensor:
    return (x - x.amax(-1, keepdim=True)).exp()


@prepare_softmax.refuses("not along one dimension that stays")
def over_two_dimensions(x: torch.Tensor = f32(4, 9)) -> torch.Tensor:
    power = (x - x.amax((0, 1), keepdim=True)).exp()
    return power / power.sum((0, 1), keepdim=True)
