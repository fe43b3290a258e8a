"""Whole models train as in eager when their graphs come from disk, and no pass runs."""

import functools
import sys
from pathlib import Path

import pytest
import torch

import eductor

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent.parent / "models"))

from zoo import MODELS
from zoo.training import train

IN_CI = ("gpt2", "recommender")
NOT_KEPT = {
    "mixtral": "it runs as captured: the gradient of its operator for experts reads sizes from a tensor",
}
"""Models whose graphs do not all come from disk, and why."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in IN_CI else [pytest.mark.slow]) for n in MODELS if n not in NOT_KEPT],
)
@pytest.mark.usefixtures("one_thread")
def test_training_is_as_after_a_cold_start(name, store, resumed, no_pass):
    run = functools.partial(train, name, functools.partial(eductor.compile, engine="aten", fallback_random=True))
    torch._dynamo.reset()
    cold = run()
    torch._dynamo.reset()
    no_pass()
    warm = run()
    assert resumed()
    assert cold.keys() == warm.keys()
    assert [key for key in cold if not torch.equal(cold[key], warm[key])] == []
