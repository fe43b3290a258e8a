"""A replacement is run against what it replaces: one that computes something else is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from eductor.errors import BadPattern
from eductor.observe.values import unlike_bits, unlike_rounding
from eductor.patterns.rules import Replaced, Rule
from eductor.patterns.sources import Traced
from eductor.pipeline.base import Numerics

_SEEDS = (0, 1, 2)


def check_rule(rule: Rule, numerics: Numerics, address: str) -> None:
    """Runs search function and replacement on random inputs like the examples; raises where they differ.

    A rule whose pattern is an expression has no examples of its own: those of its pass show what it does.
    """
    source, action = rule.source, rule.action
    if not isinstance(source, Traced) or not isinstance(action, Replaced):
        return
    for seed in _SEEDS:
        inputs = [_like(x, seed + 10 * i) for i, x in enumerate(source.signature.examples)]
        given = dict(zip(source.signature.names, inputs, strict=True))
        gradients = source.signature.gradients
        expected = _results(source.fn, inputs, gradients, seed)
        got = _results(action.fn, [given[name] for name in action.names], gradients, seed)
        truth = _truth(source.fn, inputs, gradients, seed) if numerics == "reassociates" else None
        unlike = _unlike(expected, got, numerics, truth)
        if unlike:
            raise BadPattern(
                f"the rule {address}:{rule.name} is refused: on inputs like its examples its replacement computes "
                f"something else than its search function: {unlike}."
            )


def _like(example: Any, seed: int) -> Any:
    if not isinstance(example, torch.Tensor):
        return example
    generator = torch.Generator().manual_seed(seed)
    if example.dtype.is_floating_point or example.dtype.is_complex:
        made = torch.randn(example.shape, generator=generator).to(example.dtype)
    else:
        made = torch.randint(0, 2, example.shape, generator=generator).to(example.dtype)
    return made.to(example.device)


def _results(fn: Callable[..., Any], inputs: Sequence[Any], gradients: Sequence[bool], seed: int) -> list[Any]:
    """What a function returns, and the gradients of its inputs, where those belong to the pattern."""
    taken = [
        x.detach().clone().requires_grad_(g) if isinstance(x, torch.Tensor) else x
        for x, g in zip(inputs, gradients, strict=True)
    ]
    with torch.random.fork_rng(devices=()), torch.set_grad_enabled(any(gradients)):
        torch.manual_seed(seed)
        found = fn(*taken)
        results = list(found) if isinstance(found, (list, tuple)) else [found]
        followed = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        sources = [x for x, g in zip(taken, gradients, strict=True) if g]
        if followed:
            ones = [torch.ones_like(r) for r in followed]
            results += torch.autograd.grad(followed, sources, ones, allow_unused=True)
    return [r.detach() if isinstance(r, torch.Tensor) else r for r in results]


def _truth(fn: Callable[..., Any], inputs: Sequence[Any], gradients: Sequence[bool], seed: int) -> list[Any] | None:
    """The same in float64, where the function can be run so."""
    wide = [x.double() if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x for x in inputs]
    try:
        return _results(fn, wide, gradients, seed)
    except Exception:
        return None


def _unlike(expected: list[Any], got: list[Any], numerics: Numerics, truth: list[Any] | None) -> str:
    if numerics == "exact":
        return unlike_bits(expected, got)
    if numerics == "reassociates":
        return unlike_bits(expected, got) and unlike_rounding(expected, got, truth)
    shapes = [
        [torch.empty_like(x, device="meta") if isinstance(x, torch.Tensor) else x for x in r] for r in (expected, got)
    ]
    return unlike_bits(*shapes)
