"""A kernel of oneDNN that damages memory is never called: gradients of strided 1x1 convolutions of few channels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import eductor
from eductor import Recorder


class Stem(nn.Module):
    """The start of a GerNet: a convolution, and a block with a shortcut that strides over few channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 13, 3, 2, 1)
        self.block = nn.Conv2d(13, 16, 3, 2, 1)
        self.shortcut = nn.Conv2d(13, 16, 1, 2)

    def forward(self, x):
        h = self.stem(x).relu()
        return (self.block(h) + self.shortcut(h)).relu()


def gradients(model, call, size):
    torch.manual_seed(0)
    return torch.autograd.grad(call(torch.randn(1, 3, size, size)).sum(), list(model.parameters()))


def test_the_weight_gradient_is_computed_from_contiguous_tensors():
    recorder, model = Recorder(), Stem()
    call = eductor.compile(model, engine="inductor", strict=True, instruments=[recorder])
    for a, b in zip(gradients(model, call, 16), gradients(model, model, 16), strict=True):
        torch.testing.assert_close(a, b)
    assert any("keep_strided_convolutions_contiguous" in address for address in recorder.changed())


def test_memory_is_not_damaged():
    """In a process of its own: a damaged heap ends it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(eductor.__file__).parent.parent)])}
    done = subprocess.run([sys.executable, "-W", "ignore", __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    model = Stem()
    call = eductor.compile(model, engine="inductor", strict=True)
    for _ in range(20):
        kept = [torch.empty(1000 + 37 * i) for i in range(20)]
        gradients(model, call, 224)
    assert len(kept) == 20
