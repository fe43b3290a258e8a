"""Triton's worker processes, awake before the first kernel comes.

Kernels for a GPU are compiled in worker processes, which take seconds to start; until they are ready, Triton compiles in this
process, one kernel after the other. Torch wakes them in `compile_fx`, above the function where this engine enters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def on_gpu(inputs: Sequence[Any]) -> bool:
    """Whether an input is on a GPU, for which Triton compiles."""
    return any(isinstance(x, torch.Tensor) and x.device.type in ("cuda", "xpu") for x in inputs)


def wake_workers() -> None:
    """Start the worker processes, or wake them after a pause."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.wakeup()


def generate_awake(generate: Callable[..., Any], module: Any, inputs: Sequence[Any], *args: Any, **given: Any) -> Any:
    """`fx_codegen_and_compile`, which generates the code of a graph that is not in torch's cache."""
    if on_gpu(inputs):
        wake_workers()
    return generate(module, inputs, *args, **given)
