"""Tensor helpers for compared runs: copies, leaves, widening, gradients, aliasing, random states."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from eductor.compat import keeping_dispatch_state

NARROW = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def own_copies(values: Sequence[Any]) -> list[Any]:
    """Copies that alias each other exactly as the originals do; stateful objects are not copied."""
    shared = {id(x): x for x in values if isinstance(x, _WITH_STATE) or callable(x)}
    return copy.deepcopy([x.detach() if isinstance(x, torch.Tensor) else x for x in values], shared)


_WITH_STATE = (nn.Module, torch.optim.Optimizer, torch.Generator)


def widened(x: Any) -> Any:
    """A narrower tensor as float64; anything else unchanged."""
    return x.to(NARROW[x.dtype]) if isinstance(x, torch.Tensor) and x.dtype in NARROW else x


def gradients(outputs: Sequence[Any], leaves: Sequence[torch.Tensor]) -> list[Any]:
    """The gradients of leaves, with random weights on all elements of differentiable outputs."""
    roots = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if not roots or not leaves:
        return []
    with torch.enable_grad():
        given = [_weights(o, seed) for seed, o in enumerate(roots)]
        found = torch.autograd.grad(roots, leaves, given, allow_unused=True)
    # Their strides do not matter: accumulation uses those of the leaf.
    return [g if g is None or g.layout is not torch.strided else g.contiguous() for g in found]


def _weights(like: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    return torch.empty_like(like, requires_grad=False).copy_(numbers)


def places(known: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, str]:
    """For each result, in words: whether it has its own memory, or aliases an earlier tensor, and at which offset."""
    homes: dict[int, tuple[str, int]] = {}
    found: dict[str, str] = {}
    for name, x in (*known.items(), *results.items()):
        if isinstance(x, torch.Tensor) and x.layout is torch.strided and x.numel():
            home = x.untyped_storage().data_ptr()
            if name in results:
                first, start = homes.get(home, ("", 0))
                further = x.data_ptr() - start if first else 0
                at = f", {further} bytes further" if further else ""
                found[f"the memory of {name}"] = f"that of {first}{at}" if first else "its own"
            homes.setdefault(home, (name, x.data_ptr()))
    return found


def random_states() -> list[torch.Tensor]:
    """The states of the random generators of the CPU and all devices, as Dynamo initializes devices."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *devices]


@contextmanager
def keeping_states() -> Iterator[None]:
    """Restores random generators, grad mode and autocast on exit.

    Includes uninitialized devices, where a seed would be queued and overwrite the user's.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices), keeping_dispatch_state():
        yield
