"""Random programs of replayed launches against plain eager: see `random_steps`."""

from __future__ import annotations

import pytest
import torch
from random_steps import Steps, few_pairs, many_pairs

from eductor.launches import candidates


def run(seeds, pairs, monkeypatch):
    """Runs the programs of these seeds, which share what is compiled; returns how often their takes were replayed."""
    monkeypatch.setattr(candidates, "DEVICES", ("cpu",))
    known, replays = pairs(), 0
    for seed in seeds:
        with monkeypatch.context() as patch, torch._dynamo.config.patch(recompile_limit=64):
            steps = Steps(seed, known, patch)
            try:
                steps.run()
            except Exception as error:
                raise AssertionError(f"seed {seed}: {steps.done}") from error
            replays += steps.device.replays
    return replays


def test_random_steps(monkeypatch, one_thread):
    assert run(range(36), few_pairs, monkeypatch) > 200


@pytest.mark.slow
def test_many_random_steps(monkeypatch, one_thread):
    assert run(range(100, 2100), many_pairs, monkeypatch) > 10_000
