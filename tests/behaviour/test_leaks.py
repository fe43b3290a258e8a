"""What a compile made goes when torch forgets the compiled function: nothing of ours holds it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import eductor


class Captured(eductor.Instrument):
    """Keeps an eye on every graph that a stage works on."""

    def __init__(self) -> None:
        self.graphs: list[weakref.ref[torch.fx.Graph]] = []

    def before_stage(self, run) -> None:
        self.graphs.append(weakref.ref(run.module.graph))

    def alive(self) -> int:
        torch._dynamo.reset()
        gc.collect()
        return sum(graph() is not None for graph in self.graphs)


@pytest.mark.parametrize("profile", ["fast", "exact"])
def test_graphs_go_with_the_compiled_function(profile):
    looking_on = Captured()
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))

    def step():
        compiled = eductor.compile(
            lambda: (x @ w).relu().sum(), engine="aten", profile=profile, instruments=[looking_on]
        )
        compiled().backward()

    step()
    assert len(looking_on.graphs) > 3
    assert looking_on.alive() == 0
