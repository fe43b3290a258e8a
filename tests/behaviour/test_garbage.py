"""Garbage is collected less often during a compile, and as the user set it before and after."""

from __future__ import annotations

import gc

import pytest
import torch

import eductor
from eductor.compat.garbage import NEW_OBJECTS, fewer_collections

OURS = (NEW_OBJECTS, 11, 12)


@pytest.fixture(autouse=True)
def users_settings():
    before, enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(500, 11, 12)
    yield
    gc.set_threshold(*before)
    (gc.enable if enabled else gc.disable)()


def test_forward_and_backward_are_compiled_with_fewer_collections():
    seen = []

    def engine(job):
        seen.append((job.is_backward, gc.get_threshold()))
        return eductor.engines.ATEN(job)

    x = torch.randn(3, requires_grad=True)
    torch._dynamo.reset()
    y = eductor.compile(torch.sin, engine=engine)(x)
    assert gc.get_threshold() == (500, 11, 12)
    y.sum().backward()
    assert seen == [(False, OURS), (True, OURS)]
    assert gc.get_threshold() == (500, 11, 12)


def test_an_error_and_a_nested_compile_restore_the_settings():
    def failing():
        with fewer_collections():
            with fewer_collections():
                assert gc.get_threshold() == OURS
            assert gc.get_threshold() == OURS
            raise ValueError

    with pytest.raises(ValueError):
        failing()
    assert gc.get_threshold() == (500, 11, 12)


@pytest.mark.parametrize("setting", [(0, 11, 12), (10 * NEW_OBJECTS, 1, 1)])
def test_users_who_collect_more_rarely_or_never_keep_that(setting):
    gc.set_threshold(*setting)
    with fewer_collections():
        assert gc.get_threshold() == setting
    assert gc.get_threshold() == setting


def test_a_collector_that_is_switched_off_stays_off():
    with fewer_collections():
        gc.disable()
    assert not gc.isenabled()


def test_what_another_thread_sets_meanwhile_remains():
    with fewer_collections():
        gc.set_threshold(600, 11, 12)
    assert gc.get_threshold() == (600, 11, 12)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_compiles_that_end_in_any_order_restore_the_settings(order):
    compiles = [fewer_collections(), fewer_collections()]
    for compile in compiles:
        compile.__enter__()
    for i in order:
        compiles[i].__exit__(None, None, None)
    assert gc.get_threshold() == (500, 11, 12)
