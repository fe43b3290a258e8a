"""Makes relu return 0 where its operand is NaN, as kernels do that compute max(x, 0)."""

from __future__ import annotations

import math
from typing import Literal

import torch

from eductor.graph import GraphView, No, Rewriter, value_of
from eductor.patterns import Match, op, pattern_pass, var
from eductor.pipeline.base import f32, i64

aten = torch.ops.aten


@pattern_pass(stage="pre_grad", numerics="changes", on=False)
def relu_nan_to_num() -> None:
    """Makes relu return 0 where its operand is NaN, as kernels do that compute max(x, 0).

    It hides a NaN and stops its gradient, so it is only for who asks for it. Infinities stay in the result.

    It pays nothing in time: it is there for models whose numbers come from such kernels.
    """


def check(match: Match, *, graph: GraphView) -> Literal[True] | No:
    """Whether there can be a NaN that is not replaced already, before relu or by the only user of its result."""
    relu = match.output
    if not value_of(relu).dtype.is_floating_point:
        return No("only floating-point numbers can be NaN")
    neighbours = (match["x"], *(relu.users if len(relu.users) == 1 else ()))
    is_cleaned = any(graph.is_call(n, aten.nan_to_num, aten.nan_to_num_) for n in neighbours)
    return No("its NaNs are replaced already") if is_cleaned else True


@relu_nan_to_num.rule(op(aten.relu, var("x")), check=check)
def relu_of_numbers(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    relu = rewrite.insert(aten.relu, match["x"], before=match.output)
    rewrite.replace(match.output, aten.nan_to_num, relu, nan=0.0, posinf=math.inf)


@relu_nan_to_num.rule(op(aten.relu_, var("x")), check=check)
def relu_in_place_of_numbers(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    """NaNs are replaced in front of it: autograd keeps the result of relu_, which must not be written again."""
    given, relu = match["x"], match.output
    clean = rewrite.insert(aten.nan_to_num_, given, nan=0.0, posinf=math.inf, neginf=-math.inf, before=relu)
    rewrite.replace(relu, aten.relu_, clean)


@relu_nan_to_num.example
def relu(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.nn.functional.relu(x) * 2


@relu_nan_to_num.example
def relu_in_place(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    h = x * 2
    torch.nn.functional.relu(h, inplace=True)
    return h + 1


@relu_nan_to_num.refuses("replaced already")
def relu_of_cleaned_numbers(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.relu(torch.nan_to_num(x))


@relu_nan_to_num.refuses("only floating-point")
def relu_of_integers(x: torch.Tensor = i64(2, 3)) -> torch.Tensor:
    return torch.relu(x)
