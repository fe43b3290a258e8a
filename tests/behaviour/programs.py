"""Small models and a script runner that the tests of behaviour share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """Convolution, batch norm and dropout: what `train` and `eval` change."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return self.head(F.dropout(x.mean(dim=(2, 3)), 0.3, self.training))


class Mlp(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.Linear(2 * width, 3)

    def forward(self, x):
        return self.down(F.gelu(self.norm(self.up(x))))


def as_it_is(model):
    return model


def both(script, compile):
    """What a script observes of a program as it is, and of the same one compiled; both begin with the same seed."""
    seen = []
    for how in (as_it_is, compile):
        torch._dynamo.reset()
        torch.manual_seed(0)
        seen.append(script(how))
    return seen


def assert_same(a, b, close=False):
    """Bit by bit, or up to roundings, through lists and tuples; types and messages of exceptions count."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        torch.testing.assert_close(b, a, **({} if close else {"rtol": 0, "atol": 0}), equal_nan=True)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y, close)
    elif isinstance(a, BaseException):
        assert str(a) == str(b)
    else:
        assert a == b
