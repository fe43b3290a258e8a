"""The terminal on which a line may be shown: not where output is redirected, and not while others draw there."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import TextIO


def free_terminal() -> TextIO | None:
    """The terminal of this process, if no other output may be on it now.

    A notebook replaces `sys.stderr`, and so does `rich` while it draws. Of several processes on one terminal the first one
    writes: not those of `multiprocessing`, and of those of `torchrun` the one of rank 0.
    """
    stream, is_replaced = sys.stderr, sys.stderr is not sys.__stderr__
    if stream is None or is_replaced or stream.closed or not stream.isatty():
        return None
    is_first = multiprocessing.parent_process() is None and os.environ.get("LOCAL_RANK", "0") == "0"
    understands = os.environ.get("TERM", "dumb") != "dumb"
    return stream if is_first and understands and not _has_bars() else None


def _has_bars() -> bool:
    """Whether a bar of tqdm is open, by a set that tqdm keeps for itself."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return bool(getattr(bars, "_instances", None))
