"""Inputs with a negative bit, such as the imaginary part of a conjugate: kernels would read memory of the other sign."""

from __future__ import annotations

from typing import Any

import torch

from eductor.errors import Unsupported
from eductor.program.job import Job


def has_negative_inputs(job: Job) -> bool:
    """Whether an input has the negative bit; an input that is written must not."""
    found = {i for i, x in enumerate(job.inputs) if isinstance(x, torch.Tensor) and x.is_neg()}
    if found & job.written:
        raise Unsupported("an input that has a negative bit and is written in place")
    return bool(found)


def resolve_negative(inputs: list[Any]) -> list[Any]:
    """The inputs, replaced in their list by tensors without the bit."""
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor) and x.is_neg():
            inputs[i] = x.resolve_neg()
    return inputs
