"""The garbage collector of reference cycles, held back while a graph is compiled.

A compile makes hundreds of thousands of objects that live until its end. Whenever the objects of a process have grown by a
quarter, CPython looks at all of them, the modules of torch and of the user included: with 48 layers, for a quarter of our time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 50_000
"""The new objects after which a collection looks at these: some 10 MB."""


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collects garbage after more new objects than usual; a user's own settings, and their changes meanwhile, remain."""
    before = gc.get_threshold()
    raised = (max(before[0], NEW_OBJECTS), *before[1:]) if before[0] else before
    gc.set_threshold(*raised)
    try:
        yield
    finally:
        if gc.get_threshold() == raised:
            gc.set_threshold(*before)
