"""Seeded randomness: one draw of seeds per device, then random tensors that are functions of their seed.

`eductor::seeds` draws from the generator of its device, so `torch.manual_seed` determines all numbers.
`eductor::random` and `eductor::random_integers` draw nothing: recomputed, they return the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from eductor.ops.definition import define

DISTRIBUTIONS = ("rand", "randn")


def _seeds(count: int, *, device: torch.device) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), dtype=torch.int64, device=device)


def _fake_seeds(count: int, *, device: torch.device) -> torch.Tensor:
    return torch.empty((count,), dtype=torch.int64, device=device)


def _random(
    seeds: torch.Tensor, index: int, size: Sequence[int], distribution: str, *, dtype: torch.dtype
) -> torch.Tensor:
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution {distribution!r}: it must be one of {', '.join(DISTRIBUTIONS)}")
    if seeds.is_cpu:
        draw = torch.rand if distribution == "rand" else torch.randn
        return draw(size, generator=_generator(seeds, index), dtype=dtype)
    make = uniform if distribution == "rand" else normal
    return make(bits(seeds[index], math.prod(size)), dtype).view(size)


def _random_integers(
    seeds: torch.Tensor, index: int, size: Sequence[int], low: int, high: int, *, dtype: torch.dtype
) -> torch.Tensor:
    if seeds.is_cpu:
        return torch.randint(low, high, size, generator=_generator(seeds, index), dtype=dtype)
    return integers(bits(seeds[index], math.prod(size)), low, high).to(dtype).view(size)


def _fake(seeds: torch.Tensor, index: int, size: Sequence[int], *drawn_from: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=seeds.device)


seeds = define(
    "seeds(int count, *, Device device) -> Tensor",
    _seeds,
    fake=_fake_seeds,
    tags=(torch.Tag.nondeterministic_seeded,),
)
random = define(
    "random(Tensor seeds, int index, SymInt[] size, str distribution, *, ScalarType dtype) -> Tensor",
    _random,
    fake=_fake,
)
random_integers = define(
    "random_integers(Tensor seeds, int index, SymInt[] size, SymInt low, SymInt high, *, ScalarType dtype) -> Tensor",
    _random_integers,
    fake=_fake,
)

SEEDED = (random.default, random_integers.default)
"""Operators whose numbers are a function of their first two arguments, the seeds and an index into them."""


def _generator(seeds: torch.Tensor, index: int) -> torch.Generator:
    """A separate generator, the fastest way on a CPU; other devices use `bits`, as reading a seed would synchronize."""
    return torch.Generator().manual_seed(int(seeds[index].item()))


# ----------------------------------------------------------------- numbers from a seed that the host does not know

_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""Odd factors, each of which spreads a change of one bit to the bits above it."""


def bits(seed: torch.Tensor, count: int) -> torch.Tensor:
    """`count` numbers of 64 random bits: each index mixed with the seed, as in SplitMix64."""
    mixed = torch.arange(count, dtype=torch.int64, device=seed.device).mul_(_STEP).add_(seed)
    mixed.bitwise_xor_(_upper(mixed, 34)).mul_(_FIRST)
    # Mix in the seed again: otherwise two seeds would be two offsets in one sequence.
    mixed.bitwise_xor_(seed).bitwise_xor_(_upper(mixed, 37)).mul_(_SECOND)
    return mixed.bitwise_xor_(_upper(mixed, 33))


def _upper(numbers: torch.Tensor, count: int) -> torch.Tensor:
    """The upper bits, shifted down; torch's shift is arithmetic, so the sign is masked off."""
    return (numbers >> (64 - count)).bitwise_and_((1 << count) - 1)


def uniform(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Uniform in [0, 1), with as many bits as the dtype has digits, so that nothing rounds up to 1."""
    digits = 1 - round(math.log2(torch.finfo(dtype).eps))
    return _upper(bits, digits).to(dtype).mul_(2.0**-digits)


def normal(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Normal, by Box-Muller: the upper half of the bits gives the radius, the lower half the angle."""
    wide = torch.promote_types(dtype, torch.float32)
    radius = _upper(bits, 32).add_(1).to(wide).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    angle = bits.bitwise_and(2**32 - 1).to(wide).mul_(math.tau * 2.0**-32)
    return radius.mul_(angle.cos_()).to(dtype)


def integers(bits: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """Integers in [low, high)."""
    return _upper(bits, 63).remainder_(high - low).add_(low)


def _drawn_in_order(draws: Sequence[torch.Tensor]) -> None:
    """Does nothing, as nodes run in order."""


drawn_in_order = define("drawn_in_order(Tensor[] draws) -> ()", _drawn_in_order)
"""Marks that these tensors were drawn from a generator in this order; it computes nothing."""

torch.fx.node.has_side_effect(drawn_in_order.default)
