"""Direct calls of compiled graphs and kernels: from the second call on they skip torch's logging and cache lookups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from eductor.engines.inductor.direct_launch import launch_directly
from eductor.program.job import Run


def direct_call(compiled: Any) -> Run:
    """A function that calls a compiled graph directly; under a profiler it calls through torch."""
    from torch._inductor import debug
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    runner = getattr(compiled, "compiled_fn_runner", None)
    if runner is not None and torch.version.cuda and not hasattr(CachingAutotuner, "_build_fast_launcher"):
        launch_directly(runner.call.__func__.__globals__, CachingAutotuner, is_observed)
    if not hasattr(compiled, "current_callable"):
        return cast(Run, compiled)
    is_settled = False

    def run(inputs: list[Any]) -> Sequence[Any]:
        nonlocal is_settled
        if is_settled and not (torch.autograd.profiler._is_profiler_enabled or debug.RECORD_GRAPH_EXECUTION):
            return cast("Sequence[Any]", compiled.current_callable(inputs))
        results = compiled(inputs)
        is_settled = True
        return cast("Sequence[Any]", results)

    return run


def is_observed() -> bool:
    """Whether a profiler or a dispatch mode observes each launch."""
    return torch.autograd.profiler._is_profiler_enabled or torch._C._len_torch_dispatch_stack() > 0
