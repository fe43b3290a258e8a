"""What a compile waits for, started before its passes run: Triton's worker processes, the search for vector instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Thread
from typing import Any

import torch

from eductor.engines.inductor import vector_isa
from eductor.engines.inductor.patches import installed
from eductor.engines.inductor.workers import on_gpu, wake_workers


def load() -> None:
    """Import the code generator, as `torch.compile` does where it gets a function."""
    with suppress(Exception):  # the engine will raise it again
        from torch._inductor import compile_fx  # noqa: F401


@contextmanager
def warmed_up(inputs: Sequence[Any], is_cached: bool) -> Iterator[None]:
    """Start what the engine needs for graphs with such inputs; at the end the search is over, so that nothing else meets it.

    The kernels of a cached graph are likely to be cached, too: then the first graph whose kernels are not wakes the workers.
    """
    if on_gpu(inputs):
        if not is_cached:
            with suppress(Exception):  # the engine will raise it again
                wake_workers()
        yield
    elif any(isinstance(x, torch.Tensor) and x.device.type == "cpu" for x in inputs) and not vector_isa.is_known():
        with _searching():
            yield
    else:
        yield


@contextmanager
def _searching() -> Iterator[None]:
    from torch._inductor import codecache  # noqa: F401 - the search needs it, and two threads should not import it at once

    search = Thread(target=copy_context().run, args=(_search,), name="eductor-vector-isa", daemon=True)
    with installed():  # so that stock Inductor in another thread waits for the search
        search.start()
        try:
            yield
        finally:
            search.join()


def _search() -> None:
    with suppress(Exception):  # the engine will raise it again
        vector_isa.best()
