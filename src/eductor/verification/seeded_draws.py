"""Random draws that depend only on a node's origin, so that a graph before and after a pass draws the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import Bound, bind, bind_call, provenance_of


def origin_of(node: Node) -> str:
    """The name of the captured graph's node that a node originates from."""
    made = provenance_of(node)
    if made is None:
        return node.name
    while made.origins:
        made = made.origins[0]
    return made.sources[0]


@dataclass(frozen=True, slots=True)
class _Draw:
    """Numbers for one tensor, drawn in memory order."""

    like: torch.Tensor
    seed: int

    def uniform(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._filled(torch.rand, dtype or self.like.dtype)

    def normal(self) -> torch.Tensor:
        return self._filled(torch.randn, self.like.dtype)

    def integers(self, low: int, high: int) -> torch.Tensor:
        return self._filled(partial(torch.randint, low, high), self.like.dtype)

    def chance(self, p: Any) -> torch.Tensor:
        is_wide = isinstance(p, torch.Tensor) and p.dtype is torch.float64
        return torch.lt(self.uniform(torch.float64 if is_wide else torch.float32), p)

    def _filled(self, draw: Callable[..., torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        like = self.like
        generator = torch.Generator(like.device).manual_seed(self.seed)
        made = torch.empty_strided(like.shape, like.stride(), dtype=dtype, device=like.device)
        flat = draw((like.numel(),), generator=generator, dtype=dtype, device=like.device)
        made.as_strided((like.numel(),), (1,)).copy_(flat)
        return made


def _dropped(draw: _Draw, call: Bound) -> tuple[torch.Tensor, torch.Tensor]:
    p, given = call["p"], call["input"]
    mask = draw.chance(1 - p)
    return given * mask * (1 / (1 - p) if p < 1 else 0.0), mask


aten, prims, own = torch.ops.aten, torch.ops.prims, torch.ops.eductor

_RULES: dict[Any, Callable[[_Draw, Bound], Any]] = {
    **dict.fromkeys((aten.rand, aten.rand_like), lambda draw, _: draw.uniform()),
    **dict.fromkeys((aten.randn, aten.randn_like), lambda draw, _: draw.normal()),
    **dict.fromkeys(
        (aten.randint, aten.randint_like, own.random_integers),
        lambda draw, call: draw.integers(int(call.get("low", 0)), int(call["high"])),
    ),
    **dict.fromkeys(
        (aten.normal, aten.normal_functional, prims.normal),
        lambda draw, call: draw.normal() * call["std"] + call["mean"],
    ),
    aten.uniform: lambda draw, call: draw.uniform() * (call["to"] - call["from"]) + call["from"],
    aten.exponential: lambda draw, call: -(-draw.uniform()).log1p() / call["lambd"],
    aten.bernoulli: lambda draw, call: draw.chance(call.get("p", call["self"])).to(draw.like.dtype),
    aten.native_dropout: _dropped,
    own.random: lambda draw, call: draw.uniform() if call["distribution"] == "rand" else draw.normal(),
}
"""The result of each random operator in terms of uniform and normal numbers."""


def is_redrawn(node: Node) -> bool:
    """Whether a node's draw is replaced by one that depends only on its origin."""
    return isinstance(node.target, OpOverload) and node.target.overloadpacket in _RULES and _draws(node)


def _draws(node: Node) -> bool:
    """Whether a node draws from the default generator; dropout outside of training does not draw."""
    call = bind(node)
    return isinstance(call, Bound) and call.get("generator") is None and call.get("train") is not False


def redrawn(node: Node, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A node's result with numbers that depend only on its origin; `value` is its original result."""
    call = bind_call(node.target, args, kwargs)
    assert isinstance(call, Bound)
    like = value[-1] if isinstance(value, (tuple, list)) else value
    return _RULES[call.packet](_Draw(like, seed_of(node)), call)


def seed_of(node: Node) -> int:
    """A seed that depends only on a node's origin."""
    return int(hashlib.blake2b(origin_of(node).encode(), digest_size=4).hexdigest(), 16)
