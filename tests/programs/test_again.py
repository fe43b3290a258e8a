"""Every program does what it does in eager where the backward computes again as much as it may."""

import warnings

import pytest
import torch

import eductor

from .test_programs import PROGRAMS, differences, observe

FUSING = eductor.engines.Engine("fusing", eductor.engines.ATEN.compile, fuses=True)
"""Priced as if pointwise operators cost nothing, so that all of them are computed again; run by ATen."""


@pytest.mark.parametrize("program", (p for p in PROGRAMS if not p.fallback), ids=lambda program: program.name)
def test_program_does_what_it_does_in_eager(program):
    def compiled(fn):
        return eductor.compile(fn, engine=FUSING, memory_budget=0, fallback_random=True)

    torch._dynamo.reset()
    expected = observe(lambda fn: fn, program)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", eductor.EductorWarning)
        got = observe(compiled, program)
    assert not differences(expected, got, exact=False, low_precision=program.low_precision)
