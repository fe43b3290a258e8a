"""The formula of each random operator in terms of seeded tensors, and when it cannot be seeded."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.graph import Bound, No, known_true, tensor_of
from eductor.passes.joint.seeded.draw import NORMAL, UNIFORM, Draw, Kind, integers

aten, prims = torch.ops.aten, torch.ops.prims


def _bernoulli(draw: Draw) -> Node:
    return draw.chance(draw.bound.get("p", draw.bound["self"]))


def _between(draw: Draw) -> Node:
    least, most = draw.bound["from"], draw.bound["to"]
    return _shifted(draw, _scaled(draw, draw.numbers(UNIFORM), most - least), least)


def _normal(draw: Draw) -> Node:
    return _shifted(draw, _scaled(draw, draw.numbers(NORMAL), draw.bound["std"]), draw.bound["mean"])


def _exponential(draw: Draw) -> Node:
    """-log(1 - u) / lambd: u is never 1, and the logarithm is clamped so that it is never 0."""
    waited = draw.call(aten.neg, draw.call(aten.log1p, draw.call(aten.neg, draw.numbers(UNIFORM))))
    least = torch.finfo(draw.value.dtype).eps / 2
    return _scaled(draw, draw.call(aten.clamp_min, waited, least), 1 / draw.bound["lambd"])


def _scaled(draw: Draw, numbers: Node, factor: Any) -> Node:
    return numbers if factor == 1 else draw.call(aten.mul, numbers, factor)


def _shifted(draw: Draw, numbers: Node, shift: Any) -> Node:
    return numbers if shift == 0 else draw.call(aten.add, numbers, shift)


_KINDS: dict[Any, Callable[[Bound], Kind]] = {
    **dict.fromkeys((aten.rand, aten.rand_like), lambda _: UNIFORM),
    **dict.fromkeys((aten.randn, aten.randn_like), lambda _: NORMAL),
    **dict.fromkeys((aten.randint, aten.randint_like), lambda call: integers(call.get("low", 0), call["high"])),
}
_RECIPES: dict[Any, Callable[[Draw], Node]] = {
    **dict.fromkeys((aten.normal, aten.normal_functional, prims.normal), _normal),
    aten.bernoulli: _bernoulli,
    aten.uniform: _between,
    aten.exponential: _exponential,
}
OPERATORS = (*_KINDS, *_RECIPES, aten.native_dropout)


def replace(draw: Draw) -> None:
    """Replaces a call by seeded tensors."""
    packet = draw.bound.packet
    if packet in _KINDS:
        draw.become(_KINDS[packet](draw.bound))
    elif packet in _RECIPES:
        draw.rewrite.replace(draw.node, draw.cast(_RECIPES[packet](draw)))
    else:
        _replace_dropout(draw)


def _replace_dropout(draw: Draw) -> None:
    """Dropout returns the scaled result and the mask."""
    p = draw.bound["p"]
    mask = draw.chance(1 - p)
    masked = draw.call(aten.mul, draw.bound["input"], mask)
    results = (draw.call(aten.mul, masked, 1 / (1 - p) if p < 1 else 0.0), mask)
    for user in list(draw.node.users):
        _, place = user.args
        assert isinstance(place, int)
        draw.rewrite.replace(user, results[place])
    draw.rewrite.erase(draw.node)


# ------------------------------------------------------------------------------------------------------ refusals


def may_be_seeded(bound: Bound, node: Node, value: torch.Tensor) -> Literal[True] | No:
    """Whether a call can be computed from a seed."""
    if bound.op._schema.is_mutable:
        return No("it writes one of its arguments")
    if bound.get("generator") is not None:
        return No("it draws from an explicit generator")
    if bound.get("pin_memory"):
        return No("it uses pinned memory")
    if value.layout is not torch.strided:
        return No(f"its layout is {value.layout}")
    if value.is_complex():
        return No("its numbers are complex")
    special = _SPECIAL.get(bound.packet)
    return special(bound, node, value) if special is not None else True


def _may_draw_integers(bound: Bound, node: Node, value: torch.Tensor) -> Literal[True] | No:
    low, high = bound.get("low", 0), bound["high"]
    if tensor_of(low) is not None or tensor_of(high) is not None:
        return No("a bound of its range is a tensor")
    low, high = (x.meta["val"] if isinstance(x, Node) else x for x in (low, high))
    if not known_true(low < high):
        return No("its range may be empty, which is an error")
    if isinstance(low, int) and isinstance(high, int) and high - low > 2**32:
        return No("its range is wider than 32 bits")
    least, most = _whole_numbers(value.dtype)
    if value.dtype is not torch.int64 and not (known_true(low >= least) and known_true(high - 1 <= most)):
        return No(f"its range may not fit {value.dtype}")
    return True


def _whole_numbers(dtype: torch.dtype) -> tuple[int, int]:
    """The range in which a dtype represents every integer."""
    if dtype is torch.bool:
        return 0, 1
    if dtype.is_floating_point:
        most = round(2 / torch.finfo(dtype).eps)
        return -most, most
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _may_draw_bernoulli(bound: Bound, node: Node, value: torch.Tensor) -> Literal[True] | No:
    p = bound.get("p", bound["self"])
    return True if tensor_of(p) is not None else _is_probability(p)


def _may_drop(bound: Bound, node: Node, value: torch.Tensor) -> Literal[True] | No:
    if bound["train"] is False:
        return No("it drops nothing")
    given = tensor_of(bound["input"])
    if given is None or not given.is_floating_point():
        return No("its input is not a floating-point tensor")
    if any(user.target is not operator.getitem for user in node.users):
        return No("its results are used as a tuple")
    return _is_probability(bound["p"])


def _is_probability(p: Any) -> Literal[True] | No:
    return True if _is_number(p) and 0 <= p <= 1 else No("its probability is not known to be in [0, 1]")


def _may_draw_between(bound: Bound, node: Node, value: torch.Tensor) -> Literal[True] | No:
    least, most = bound["from"], bound["to"]
    fits = _is_number(least) and _is_number(most) and least <= most
    return True if fits else No("its range is not known to be valid")


def _may_draw_normal(bound: Bound, node: Node, value: torch.Tensor) -> Literal[True] | No:
    fits = [tensor_of(x) is not None or _is_number(x) for x in (bound["mean"], bound["std"])]
    if not all(fits) or (_is_number(bound["std"]) and bound["std"] < 0):
        return No("its mean or standard deviation is not known to be valid")
    return True


def _may_draw_exponential(bound: Bound, node: Node, value: torch.Tensor) -> Literal[True] | No:
    return True if _is_number(bound["lambd"]) and bound["lambd"] > 0 else No("its rate is not known to be positive")


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float))


_SPECIAL: dict[Any, Callable[[Bound, Node, torch.Tensor], Literal[True] | No]] = {
    **dict.fromkeys((aten.randint, aten.randint_like), _may_draw_integers),
    aten.bernoulli: _may_draw_bernoulli,
    aten.native_dropout: _may_drop,
    aten.uniform: _may_draw_between,
    aten.exponential: _may_draw_exponential,
    **dict.fromkeys((aten.normal, aten.normal_functional, prims.normal), _may_draw_normal),
}
