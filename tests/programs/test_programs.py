"""Every program compiled by Eductor does what it does in eager."""

import warnings

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


def runs():
    for program in PROGRAMS:
        for engine in program.engines:
            yield pytest.param(program, engine, False, id=f"{program.name}-{engine}-static")
            if program.also_dynamic if engine == "aten" else program.dynamic_on_inductor:
                yield pytest.param(program, engine, True, id=f"{program.name}-{engine}-dynamic")


def test_every_line_of_the_checklist_has_two_programs():
    for line in range(1, 40):
        assert sum(line in program.lines for program in PROGRAMS) >= 2, line


@pytest.mark.parametrize(("program", "engine", "dynamic"), runs())
def test_program_does_what_it_does_in_eager(program, engine, dynamic):
    def compiled(fn):
        return eductor.compile(
            fn,
            engine=engine,
            verify="each",
            profile="exact" if engine == "aten" else "fast",
            fallback_random=True,
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
