"""Every program compiled by Eductor does what it does in eager."""

import warnings
from collections import Counter

import pytest
import torch

import eductor

from . import (
    aliased_inputs,
    autograd_details,
    custom_ops,
    higher_order,
    inputs_outputs,
    modes,
    modules,
    mutation,
    randomness,
    shapes,
    special,
    views,
)
from .comparing import PROGRAMS, differences, observe

TOPICS = (
    inputs_outputs,
    mutation,
    views,
    aliased_inputs,
    autograd_details,
    randomness,
    shapes,
    modes,
    higher_order,
    custom_ops,
    modules,
    special,
)


LINES = range(1, 40)


def soon_on_inductor():
    """For each line of the checklist the first two programs, through a C++ compiler; the others are slow tests there."""
    counts = Counter()
    for program in PROGRAMS:
        if "inductor" in program.engines and any(counts[line] < 2 for line in program.lines):
            counts.update(program.lines)
            yield program.name


SOON_ON_INDUCTOR = frozenset(soon_on_inductor())


def runs():
    for program in PROGRAMS:
        for engine in program.engines:
            marks = [pytest.mark.slow] if engine == "inductor" and program.name not in SOON_ON_INDUCTOR else []
            yield pytest.param(program, engine, False, id=f"{program.name}-{engine}-static", marks=marks)
            if program.also_dynamic if engine == "aten" else program.dynamic_on_inductor:
                yield pytest.param(program, engine, True, id=f"{program.name}-{engine}-dynamic", marks=marks)


def test_every_line_of_the_checklist_has_two_programs():
    for line in LINES:
        assert sum(line in program.lines for program in PROGRAMS) >= 2, line
        on_inductor = [p.name for p in PROGRAMS if line in p.lines and "inductor" in p.engines]
        assert len(SOON_ON_INDUCTOR & set(on_inductor)) >= min(2, len(on_inductor)), line


@pytest.mark.parametrize(("program", "engine", "dynamic"), runs())
def test_program_does_what_it_does_in_eager(program, engine, dynamic):
    def compiled(fn):
        return eductor.compile(
            fn,
            engine=engine,
            verify="each",
            profile="exact" if engine == "aten" else "fast",
            fallback_random=True,
            regions=True,
            dynamic=True if dynamic else None,
        )

    torch._dynamo.reset()
    expected = observe(lambda fn: fn, program)
    torch._dynamo.reset()
    if program.fallback:
        with pytest.warns(eductor.EductorWarning, match=program.fallback):
            got = observe(compiled, program)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error", eductor.EductorWarning)
            got = observe(compiled, program)
    exact = engine == "aten" and program.exact_on_aten
    assert not differences(expected, got, exact=exact, low_precision=program.low_precision)
