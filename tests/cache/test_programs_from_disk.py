"""Every program does what it does in eager when its graphs come from disk; `make test` takes a fixed part of them."""

import warnings

import pytest
import torch

import eductor
from eductor.cache import Store
from programs.comparing import differences, observe
from programs.test_programs import PROGRAMS

EVERY = 8


def runs():
    programs = [p for p in PROGRAMS if "aten" in p.engines and not p.fallback]
    for i, program in enumerate(programs):
        marks = [] if i % EVERY == 0 else [pytest.mark.slow]
        yield pytest.param(program, None, id=f"{program.name}-static", marks=marks)
        if program.also_dynamic:
            yield pytest.param(program, True, id=f"{program.name}-dynamic", marks=marks)


@pytest.fixture
def kept(store, monkeypatch):
    """The graphs that were stored; a backward for some of the tangents has an entry of its own, even if its graph has none."""
    found, put = [], Store.put

    def keep(self, key, data):
        found.extend([key] if "present" not in data else [])
        put(self, key, data)

    monkeypatch.setattr(Store, "put", keep)
    return found


@pytest.mark.parametrize(("program", "dynamic"), runs())
def test_program_does_what_it_does_in_eager(program, dynamic, kept, resumed):
    def compiled(fn):
        return eductor.compile(fn, engine="aten", profile="exact", dynamic=dynamic)

    torch._dynamo.reset()
    expected = observe(lambda fn: fn, program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", eductor.EductorWarning)
        for _ in range(2):
            torch._dynamo.reset()
            got = observe(compiled, program)
    assert not differences(expected, got, exact=program.exact_on_aten, low_precision=program.low_precision)
    assert bool(resumed()) == bool(kept)
