"""Direct calls of compiled graphs and kernels: from the second call on they skip torch's logging and cache lookups.

Torch 2.13 launches Triton kernels directly itself. The launcher here relies on the internals of versions 2.11 and 2.12.
Only names in modules that were generated for this engine are replaced: kernels are shared with graphs of stock Inductor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, cast

import torch

from eductor.program.job import Run


def direct_call(compiled: Any) -> Run:
    """A function that calls a compiled graph directly; under a profiler it calls through torch."""
    from torch._inductor import debug
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    if not hasattr(compiled, "current_callable"):
        return cast(Run, compiled)
    runner: Any = getattr(compiled, "compiled_fn_runner", None)
    launches = runner is not None and torch.version.cuda and not hasattr(CachingAutotuner, "_build_fast_launcher")
    is_settled = False

    def run(inputs: list[Any]) -> Sequence[Any]:
        nonlocal is_settled
        if is_settled and not (torch.autograd.profiler._is_profiler_enabled or debug.RECORD_GRAPH_EXECUTION):
            return cast("Sequence[Any]", compiled.current_callable(inputs))
        if launches and not is_settled:  # only now all its kernels are built
            launch_directly(runner.call.__func__.__globals__, CachingAutotuner, is_observed)
        results = compiled(inputs)
        is_settled = True
        return cast("Sequence[Any]", results)

    return run


def is_observed() -> bool:
    """Whether a profiler or a dispatch mode observes each launch."""
    return torch.autograd.profiler._is_profiler_enabled or torch._C._len_torch_dispatch_stack() > 0


def launch_directly(scope: dict[str, Any], kind: type, is_observed: Callable[[], bool]) -> None:
    """Launch the kernels of a generated module directly from their second launch on, unless an observer is active.

    The kernel itself stays as it is: torch copies and pickles it.
    """
    for name, value in list(scope.items()):
        if type(value) is kind:
            scope[name] = Launcher(value, is_observed)


class Launcher:
    """A proxy for a kernel in generated code: the first launch picks the configuration, later ones are direct."""

    def __init__(self, kernel: Any, is_observed: Callable[[], bool]) -> None:
        self._kernel = kernel
        self._is_observed = is_observed
        self.run: Callable[..., Any] = self._first

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up on a copy before its fields are set
            raise AttributeError(name)
        return getattr(self._kernel, name)

    def _first(self, *args: Any, stream: int, **settings: Any) -> Any:
        result = self._kernel.run(*args, stream=stream, **settings)
        launch = _direct(self._kernel)
        self.run = self._kernel.run if launch is None else self._later(launch)
        return result

    def _later(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        whole, is_observed = self._kernel.run, self._is_observed

        def run(*args: Any, stream: int, **settings: Any) -> Any:
            if settings or is_observed():
                return whole(*args, stream=stream, **settings)
            return launch(*args, stream=stream)

        return run


def _direct(kernel: Any) -> Callable[..., Any] | None:
    """A function that launches a kernel by the driver call alone; None if each launch needs torch's extra work."""
    dumps = kernel.dump_launch_params or kernel.dump_launch_tensors
    if len(kernel.launchers) != 1 or kernel.triton_interpret or dumps:
        return None
    (launcher,) = kernel.launchers
    static: Any = getattr(launcher.__globals__.get("runner"), "__self__", None)
    if launcher.store_cubin or not hasattr(static, "C_impl"):
        return None
    # The last arguments of a kernel are its scratch pointers, if it was compiled to take them.
    unused = (None,) * (int(static.has_global_scratch) + int(static.has_profile_scratch))
    call, function, types = static.C_impl._launch_kernel, static.function, static.arg_tys + "O" * len(unused)
    warps, shared = static.num_warps, static.shared

    def runner(x: int, y: int, z: int, stream: int, *args: Any) -> None:
        call(function, x, y, z, warps, shared, types, args + unused, stream)

    # The launcher is generated: it computes the grid from the arguments, and passes it to its `runner`.
    return FunctionType(launcher.__code__, {**launcher.__globals__, "runner": runner})
