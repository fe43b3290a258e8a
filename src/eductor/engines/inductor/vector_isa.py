"""The CPU's vector instructions for generated C++: the best set that the compiler supports, looked for once.

Torch compiles and loads a test program for each set that the CPU has, which takes 4 s of processor time at first and 0.6 s in
each later process. Kernels are generated for the best set alone, so the search here ends with it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from threading import Lock
from typing import Any

_lock = Lock()
"""Held while test programs are compiled: torch changes the flags of a set meanwhile, so that a second thread has to wait."""


def best() -> list[Any]:
    """The best set of instructions, as a list like torch's; empty where only torch's own search knows."""
    with _lock:
        return _best()


def is_known() -> bool:
    """Whether the search is over."""
    return bool(_best.cache_info().currsize)


def valid_sets(search: Callable[[], list[Any]], is_ours: Callable[[], bool]) -> Callable[[], list[Any]]:
    """Torch's search for all sets, `valid_vec_isa_list`, or for our compiles the best one."""

    @functools.wraps(search)
    def valid() -> list[Any]:
        found = best() if is_ours() and _takes_the_best() else []
        if found:
            return found
        with _lock:
            return search()

    return valid


def _takes_the_best() -> bool:
    """Whether neither a setting nor the environment asks for another set."""
    from torch._inductor import config

    return config.cpp.simdlen is None and "ATEN_CPU_CAPABILITY" not in os.environ


@functools.cache
def _best() -> list[Any]:
    from torch._inductor import cpu_vec_isa

    flags = set(cpu_vec_isa.x86_isa_checker())
    sets = (isa for isa in cpu_vec_isa.supported_vec_isa_list if flags and flags.issuperset(str(isa).split()))
    return [isa for isa in [next(filter(bool, sets), None)] if isa is not None]
