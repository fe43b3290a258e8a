"""What a model of the zoo is: how it is made, what it is fed, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

TOKENS, CLASSES, WIDTH = 96, 5, 32


@dataclass(frozen=True)
class Subject:
    """A model: how to make it, a batch of some size, and what it gives for it: a loss and outputs."""

    make: Callable[[], torch.nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, ...]]
    step: Callable[..., tuple[torch.Tensor, torch.Tensor]]


def of_transformers(name, **config):
    """A model of transformers from a config, with random weights."""
    import transformers

    cls = getattr(transformers, name)
    return cls(cls.config_class(**config))


def tokens(size, length=12):
    return torch.randint(2, TOKENS, (size, length))


def labels(*shape):
    return torch.randint(CLASSES, shape)


def classes(logits, target):
    """The loss of a classification, of the whole or point by point, and the logits."""
    return F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, target), logits


def next_token(logits, ids):
    return classes(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())[0], logits
