"""Models of transformers train as in eager."""

from __future__ import annotations

import warnings

import pytest
import torch
from zoo import MODELS, train

import eductor

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def fallbacks_are_errors():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", eductor.EductorWarning)
        yield


OTHER_WHEN_TRACED = ("llama",)
"""While it is traced, transformers builds a mask where it otherwise asks the kernel for a causal one: the same but for
roundings, which differ on some processors. Of these models, eager runs what Dynamo captured."""


def in_eager(name):
    return (lambda step: torch.compile(step, backend="eager")) if name in OTHER_WHEN_TRACED else (lambda step: step)


@pytest.mark.parametrize("name", MODELS)
def test_training_is_bitwise_eager_with_the_engine_aten(name):
    losses, state = train(name, in_eager(name))
    torch._dynamo.reset()
    got, compiled_state = train(name, lambda step: eductor.compile(step, profile="exact", verify="each", strict=True))
    assert torch.equal(losses, got)
    for key, value in state.items():
        assert torch.equal(value, compiled_state[key]), key


@pytest.mark.parametrize("name", MODELS)
def test_training_is_eagers_with_the_engine_inductor(name):
    losses, state = train(name, lambda step: step)
    got, compiled_state = train(name, lambda step: eductor.compile(step, engine="inductor", fallback_random=True))
    torch.testing.assert_close(losses, got, rtol=1e-4, atol=1e-4)
    for key, value in state.items():
        torch.testing.assert_close(value, compiled_state[key], rtol=2e-2, atol=2e-2, msg=key)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_dynamic_batches_train_as_in_eager(name):
    losses, _ = train(name, lambda step: step)
    got, _ = train(name, lambda step: eductor.compile(step, profile="exact", dynamic=True))
    assert torch.equal(losses, got)
