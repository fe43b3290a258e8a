"""Seeded randomness: one draw of seeds a device, then random tensors that are functions of their seed.

`eductor::seeds` draws from the generator of its device, so `torch.manual_seed` still decides everything.
`eductor::random` draws nothing: computed twice, it gives the same numbers twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

DISTRIBUTIONS = ("rand", "randn")

torch.library.define(
    "eductor::seeds",
    "(int count, *, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.pt2_compliant_tag),
)
torch.library.define(
    "eductor::random",
    "(Tensor seeds, int index, SymInt[] size, str distribution, *, ScalarType dtype) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)

seeds = torch.ops.eductor.seeds
random = torch.ops.eductor.random


@torch.library.impl("eductor::seeds", "CompositeExplicitAutograd")
def _seeds(count: int, *, device: torch.device) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), dtype=torch.int64, device=device)


@torch.library.register_fake("eductor::seeds")  # type: ignore[untyped-decorator]
def _fake_seeds(count: int, *, device: torch.device) -> torch.Tensor:
    return torch.empty((count,), dtype=torch.int64, device=device)


@torch.library.impl("eductor::random", "CompositeExplicitAutograd")
def _random(
    seeds: torch.Tensor, index: int, size: Sequence[int], distribution: str, *, dtype: torch.dtype
) -> torch.Tensor:
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution {distribution!r}: it must be one of {', '.join(DISTRIBUTIONS)}")
    generator = torch.Generator(seeds.device).manual_seed(int(seeds[index].item()))
    draw = torch.rand if distribution == "rand" else torch.randn
    return draw(size, generator=generator, dtype=dtype, device=seeds.device)


@torch.library.register_fake("eductor::random")  # type: ignore[untyped-decorator]
def _fake_random(
    seeds: torch.Tensor, index: int, size: Sequence[int], distribution: str, *, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=seeds.device)


torch.library.define("eductor::drawn_in_order", "(Tensor[] draws) -> ()", tags=(torch.Tag.pt2_compliant_tag,))

drawn_in_order = torch.ops.eductor.drawn_in_order
"""Marks that these tensors were drawn from a generator in this order; it computes nothing."""

torch.fx.node.has_side_effect(drawn_in_order.default)


@torch.library.impl("eductor::drawn_in_order", "CompositeExplicitAutograd")
def _drawn_in_order(draws: Sequence[torch.Tensor]) -> None:
    """Nothing to do where nodes run one after another."""


@torch.library.register_fake("eductor::drawn_in_order")  # type: ignore[untyped-decorator]
def _fake_drawn_in_order(draws: Sequence[torch.Tensor]) -> None:
    """It has no result."""
