"""Random numbers that depend on the origin of their node alone: so a graph and what a pass made of it draw alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from eductor.graph.rewriter import provenance_of


def origin_of(node: Node) -> str:
    """The node of the captured graph that a node goes back to."""
    made = provenance_of(node)
    if made is None:
        return node.name
    while made.origins:
        made = made.origins[0]
    return made.sources[0]


_DISTRIBUTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    **dict.fromkeys((torch.ops.aten.rand.default, torch.ops.aten.rand_like.default), torch.rand),
    **dict.fromkeys((torch.ops.aten.randn.default, torch.ops.aten.randn_like.default), torch.randn),
}


def draw_of(node: Node) -> Callable[..., torch.Tensor] | None:
    """How the numbers of a node are distributed, if it draws some whose layout may change."""
    if node.target is torch.ops.eductor.random.default:
        return torch.rand if node.args[3] == "rand" else torch.randn
    return _DISTRIBUTIONS.get(node.target)


def drawn(like: torch.Tensor, draw: Callable[..., torch.Tensor], seed: int) -> torch.Tensor:
    """Numbers in the order of memory, whatever the strides: so they are the same in each layout of one draw."""
    generator = torch.Generator(like.device).manual_seed(seed)
    flat = draw(like.numel(), generator=generator, dtype=like.dtype, device=like.device)
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    made.as_strided((like.numel(),), (1,)).copy_(flat)
    return made


def seed_of(node: Node) -> int:
    """A seed that depends on where a node comes from, and on nothing else."""
    return int(hashlib.blake2b(origin_of(node).encode(), digest_size=4).hexdigest(), 16)
