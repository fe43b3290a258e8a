"""Runs a replacement against its search function, and refuses it by name if the results differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from eductor.errors import BadPattern
from eductor.graph.values.value_comparison import unlike_bits, unlike_rounding
from eductor.patterns.rules import Replaced, Rule
from eductor.patterns.trace.search_function import Traced
from eductor.pipeline.base import Numerics


def check_rule(rule: Rule, numerics: Numerics, address: str, differentiated: bool = False) -> None:
    """Runs search function and replacement on inputs like the examples, and raises where they differ.

    The inputs have other numbers, sizes and (where they are tolerated) ranks, and large values, too; what the functions
    write is compared with what they return, and gradients where the pattern has them or autograd comes later. A rule whose
    pattern is an expression has no examples of its own: those of its pass show what it does.
    """
    source, action = rule.source, rule.action
    if not isinstance(source, Traced) or not isinstance(action, Replaced):
        return
    floats = [isinstance(x, torch.Tensor) and x.dtype.is_floating_point for x in source.inputs.examples]
    gradients = floats if differentiated else source.inputs.gradients
    for seed, inputs in enumerate(_inputs(source)):
        try:
            expected = _results(source.fn, inputs, gradients, seed)
        except Exception:
            if seed == 0:
                raise
            continue  # not every function takes other sizes, or other numbers
        try:
            got = _results(action.fn, inputs, gradients, seed)
        except Exception as error:
            raise _refused(address, rule, f"it raises {type(error).__name__}: {error}") from error
        truth = _truth(source.fn, inputs, gradients, seed) if numerics == "reassociates" else None
        unlike = _unlike(expected, got, numerics, truth)
        if unlike:
            raise _refused(address, rule, unlike)


def _refused(address: str, rule: Rule, why: str) -> BadPattern:
    return BadPattern(
        f"the rule {address}:{rule.name} is refused: on inputs like its examples its replacement computes something else "
        f"than its search function: {why}."
    )


def _inputs(source: Traced) -> Iterator[list[Any]]:
    """The examples with random values; then with larger values, other numbers, twice the sizes, and other ranks."""
    for scale, size, number in ((1, 1, 1.0), (100, 1, 1.0), (1, 1, 0.7), (1, 2, 1.0)):
        yield [_like(x, i, scale, size, number) for i, x in enumerate(source.inputs.examples)]
    for other in source.examples():
        if other is not source.inputs:
            yield [_like(x, i) for i, x in enumerate(other.examples)]


def _like(example: Any, seed: int, scale: float = 1, size: int = 1, number: float = 1.0) -> Any:
    if isinstance(example, float):
        return example * number
    if not isinstance(example, torch.Tensor):
        return example
    generator = torch.Generator().manual_seed(seed)
    shape = [s * size if s > 1 else s for s in example.shape]
    if example.dtype.is_floating_point or example.dtype.is_complex:
        made = scale * torch.randn(shape, generator=generator).to(example.dtype)
    else:
        made = torch.randint(0, 2, shape, generator=generator).to(example.dtype)
    return made.to(example.device)


def _results(fn: Callable[..., Any], inputs: Sequence[Any], gradients: Sequence[bool], seed: int) -> list[Any]:
    """What a function returns and writes, and the gradients of its inputs, if they are asked for."""
    leaves = [
        x.detach().clone().requires_grad_(g) if isinstance(x, torch.Tensor) else x
        for x, g in zip(inputs, gradients, strict=True)
    ]
    with torch.random.fork_rng(devices=()), torch.set_grad_enabled(any(gradients)):
        torch.manual_seed(seed)
        taken = [x.clone() if isinstance(x, torch.Tensor) and g else x for x, g in zip(leaves, gradients, strict=True)]
        found = fn(*taken)
        results = list(found) if isinstance(found, (list, tuple)) else [found]
        followed = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        sources = [x for x, g in zip(leaves, gradients, strict=True) if g]
        after = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in taken]
        if followed:
            ones = [torch.ones_like(r) for r in followed]
            results += torch.autograd.grad(followed, sources, ones, allow_unused=True)
    return [r.detach() if isinstance(r, torch.Tensor) else r for r in (*results, *after)]


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
