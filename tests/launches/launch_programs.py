"""The table of the programs that run with and without replayed launches, and what they are made of.

A program is a function of a device and of what compiles. It returns all results that its caller holds in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

STEPS = 10


@dataclass(frozen=True)
class LaunchProgram:
    """`replays`: whether launches are replayed; None where both is right. `reason`: what a refusal says.

    `refused_on_gpu` is the reason of a refusal on a GPU alone. `rounds`: Dynamo changes how it rounds. `needs_gpu` is not for the fake device. `prepare` sets up
    what the replayed run meets, and is given a monkeypatch and the fake device, if it is one.
    """

    number: int
    run: Callable[[torch.device, Callable[..., Any]], list[Any]]
    replays: bool | None
    reason: str
    refused_on_gpu: str
    rounds: bool
    needs_gpu: bool
    prepare: Callable[[Any, Any], None] | None

    def __str__(self) -> str:
        return f"{self.number}-{self.run.__name__}"


PROGRAMS: list[LaunchProgram] = []


def program(
    number: int, *, replays=True, reason="", refused_on_gpu="", rounds=False, needs_gpu=False, prepare=None
) -> Callable[..., Any]:
    """Adds a program to the table; `number` is its number in the specification."""

    def add(run):
        PROGRAMS.append(LaunchProgram(number, run, replays, reason, refused_on_gpu, rounds, needs_gpu, prepare))
        return run

    return add


def wave(x):
    """Some kernels in a row."""
    return ((x.sin() * 2 + 1).cos() + x).tanh()


def layers(device, seed=0, width=8):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width)).to(device)


def inputs(device, shape=(4, 8), count=STEPS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for _ in range(count)]


def gradients(*modules):
    return [p.grad for module in modules for p in module.parameters()]


def copies(values):
    """The values as they are now."""
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in values]


def train(run, modules, batches, *, lr=0.1):
    """A step of gradient descent for each batch; the losses, and what was learned."""
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=lr)
    losses = []
    for batch in batches:
        loss = run(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return [*losses, *(p for m in modules for p in m.parameters()), *(b for m in modules for b in m.buffers())]


def random_state(device):
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(device, state):
    return torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)


def raised(run, *arguments):
    """The first words of the error that a call raises."""
    try:
        run(*arguments)
    except RuntimeError as error:
        return type(error).__name__
    return "nothing raised"
